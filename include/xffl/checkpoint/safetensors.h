// One safetensors file: reading by mmap, writing by streaming.
//
// Layout (https://huggingface.co/docs/safetensors): 8 bytes little-endian header length N, N bytes
// of JSON {"name": {"dtype","shape","data_offsets":[begin,end]}, "__metadata__": {...}}, then the
// data. A file is hostile. The reader is stricter than the format: header <= 8 MiB, <= 20,000
// tensors, depth <= 4, names [A-Za-z0-9._-]{1,200}, at most 8 dimensions, no overflowing products,
// no duplicate keys, and tensors that cover the data exactly, in any order.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "xffl/base/file.h"
#include "xffl/checkpoint/block_hashes.h"
#include "xffl/checkpoint/dtype.h"
#include "xffl/checkpoint/manifest.h"

namespace xffl::checkpoint {

inline constexpr size_t kMaxTensors = 20'000;  // of one file

struct TensorSpec {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;
  bool operator==(const TensorSpec&) const = default;

  int64_t num_elements() const;  // 1 for a scalar; no overflow for a spec that a reader accepted
  uint64_t num_bytes() const;
};

/// "[32, 128]".
std::string format_shape(const std::vector<int64_t>& shape);

class SafetensorsFile {
 public:
  /// Maps the file and checks the whole header. Throws kNotFound, kIo, kCorrupt (file, expected and
  /// found value).
  explicit SafetensorsFile(const std::filesystem::path& path);
  /// Verifies the header with the block hashes of `file`, which outlives this object. Also throws
  /// kCorrupt for a damaged header.
  SafetensorsFile(const std::filesystem::path& path, const ManifestFile& file);

  /// The tensors in the order of their data.
  const std::vector<TensorSpec>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::filesystem::path& path() const { return file_.path(); }
  bool contains(std::string_view name) const;
  const TensorSpec& spec(std::string_view name) const;  // throws kNotFound
  /// Verifies the blocks that hold `part`, bytes of data(), each block once; see BlockCheck.
  /// Returns false when `part` is not in this file. Without block hashes verify() checks nothing.
  bool verify(std::span<const std::byte> part) const;
  void verify_all() const;
  /// The tensor's bytes, row-major, little-endian, not necessarily aligned; the bytes live as long
  /// as this object.
  std::span<const std::byte> data(std::string_view name) const;

 private:
  struct Entry {
    size_t index;
    uint64_t begin;
  };
  const Entry& find(std::string_view name) const;
  void parse();

  MappedFile file_;
  std::unique_ptr<BlockCheck> check_;
  std::vector<TensorSpec> tensors_;
  std::map<std::string, Entry, std::less<>> entries_;
  std::map<std::string, std::string> metadata_;
  uint64_t data_begin_ = 0;
};

using MakeBytes = std::function<void(uint64_t offset, std::span<std::byte> to)>;

/// Writes one file front to back; only "<path>.tmp" exists until finish(). Uses a few MB of memory,
/// independent of the tensors. Background threads write and hash: a later call may throw a write
/// error.
class SafetensorsWriter {
 public:
  /// Fixes names, dtypes, shapes and their order on disk. Pads the header to a multiple of 8 bytes.
  SafetensorsWriter(std::filesystem::path path, std::vector<TensorSpec> tensors,
                    const std::map<std::string, std::string>& metadata = {{"format", "pt"}});
  ~SafetensorsWriter();  // removes the temp file when not finished
  SafetensorsWriter(SafetensorsWriter&&) noexcept;

  /// Appends the next bytes of the data, in the order of the tensors and in pieces of any size.
  void write(std::span<const std::byte> bytes);
  /// Appends `size` bytes, produced piece by piece in order: `make(offset, to)` fills `to`, a
  /// buffer of the writer, with the bytes from `offset` on. `size` and each piece are multiples of
  /// `width`.
  void write(uint64_t size, size_t width, const MakeBytes& make);
  /// Checks that the caller has written all data, then syncs and renames the file. Returns the
  /// file's manifest entry, with the hashes computed during writing.
  ManifestFile finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace xffl::checkpoint
