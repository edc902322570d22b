// One safetensors file: reading by mmap, writing by streaming.
//
// Layout (https://huggingface.co/docs/safetensors): 8 bytes little-endian header length N, N bytes
// of JSON
// {"name": {"dtype","shape","data_offsets":[begin,end]}, "__metadata__": {...}}, then the data. A
// file is hostile until checked, and the reader refuses more than the format does: header <= 8 MiB,
// <= 20,000 tensors, depth <= 4, names [A-Za-z0-9._-]{1,200}, at most 8 dimensions, products that
// overflow, duplicate keys, and data that is not covered exactly, without gap or overlap, in
// whatever order.
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
#include "xffl/checkpoint/dtype.h"
#include "xffl/checkpoint/manifest.h"

namespace xffl::checkpoint {

struct TensorSpec {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;
  bool operator==(const TensorSpec&) const = default;

  int64_t num_elements() const;  // 1 for a scalar; no overflow for a spec that a reader accepted
  uint64_t num_bytes() const;
};

/// "[32, 128]", for messages.
std::string format_shape(const std::vector<int64_t>& shape);

class SafetensorsFile {
 public:
  /// Maps and checks the whole header. Throws kNotFound, kIo, kCorrupt (file, what, expected,
  /// found).
  explicit SafetensorsFile(const std::filesystem::path& path);

  /// In the order of their data.
  const std::vector<TensorSpec>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::filesystem::path& path() const { return file_.path(); }
  bool contains(std::string_view name) const;
  const TensorSpec& spec(std::string_view name) const;  // throws kNotFound
  /// The tensor's bytes, row-major, little-endian, not necessarily aligned; they live as long as
  /// this object.
  std::span<const std::byte> data(std::string_view name) const;

 private:
  struct Entry {
    size_t index;
    uint64_t begin;
  };
  const Entry& find(std::string_view name) const;

  MappedFile file_;
  std::vector<TensorSpec> tensors_;
  std::map<std::string, Entry, std::less<>> entries_;
  std::map<std::string, std::string> metadata_;
  uint64_t data_begin_ = 0;
};

using MakeBytes = std::function<void(uint64_t offset, std::span<std::byte> to)>;

/// Writes one file front to back; nothing but "<path>.tmp" exists until finish(). Memory: some MB,
/// none per tensor. Threads of its own write and hash: an error of the disk may come with a later
/// call.
class SafetensorsWriter {
 public:
  /// Fixes names, dtypes, shapes and their order on disk. The header is padded to a multiple of 8
  /// bytes.
  SafetensorsWriter(std::filesystem::path path, std::vector<TensorSpec> tensors,
                    const std::map<std::string, std::string>& metadata = {{"format", "pt"}});
  ~SafetensorsWriter();  // removes the temp file when not finished
  SafetensorsWriter(SafetensorsWriter&&) noexcept;

  /// Appends the next bytes of the data, in tensor order; any piece size.
  void write(std::span<const std::byte> bytes);
  /// The same of `size` bytes that `make(offset, to)` writes, from `offset` of them on, into the
  /// writer's own memory: piece by piece in order, each a multiple of `width`, as `size` is.
  void write(uint64_t size, size_t width, const MakeBytes& make);
  /// Checks that exactly all data was written, fsync, rename. Returns what a manifest says of the
  /// file; its hashes were computed on the way.
  ManifestFile finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace xffl::checkpoint
