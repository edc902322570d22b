// Writes an HF model or adapter folder as "<out>.tmp-<pid>-<start>"; publish() renames it.
//
// This header also holds the checks and the progress callback of all functions of aggregate.h that
// write models.
#pragma once

#include <filesystem>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sources.h"
#include "xffl/base/error.h"
#include "xffl/checkpoint/manifest.h"
#include "xffl/checkpoint/model_folder.h"
#include "xffl/checkpoint/safetensors.h"

namespace xffl::aggregate {

class OutputFolder {
 public:
  /// `source` provides the configuration. Throws kRejected when `out` exists. Removes temporary
  /// folders of dead processes for `out`. An adapter's tensors go into one file.
  OutputFolder(std::filesystem::path out, std::vector<checkpoint::TensorSpec> tensors,
               const checkpoint::ModelFolder& source, uint64_t max_shard_bytes);
  ~OutputFolder();  // removes the temporary folder unless published
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

  uint64_t total_bytes() const { return total_bytes_; }
  /// After finish(); with the block hashes of all files.
  const checkpoint::Manifest& manifest() const { return manifest_; }
  /// Appends the next bytes of the tensors, in order; a piece does not cross a tensor's end.
  void write(std::span<const std::byte> bytes);
  /// Creates a further file of tensors in the folder. The caller writes it and gives its manifest
  /// entry to add_file() before finish().
  checkpoint::SafetensorsWriter create_file(const std::string& name,
                                            std::vector<checkpoint::TensorSpec> tensors) const {
    return {temp_ / name, std::move(tensors)};
  }
  void add_file(checkpoint::ManifestFile file) { manifest_.files.push_back(std::move(file)); }
  /// Completes the files: the index; config.json and the tokenizer files of the source, or the
  /// adapter_config.json of an adapter; manifest.json. The manifest takes the hashes of the bytes
  /// in memory: damage by the disk gets no hash. Throws kCorrupt when a file of a source with
  /// hashes is missing or damaged.
  void finish();
  /// Renames the folder to `out`, durably.
  void publish();

 private:
  void open_shard();
  void close_complete_shards();
  void write_config();
  void write_text(const std::string& name, const std::string& text);

  std::filesystem::path out_;
  std::filesystem::path temp_;
  checkpoint::Dtype dtype_;
  const checkpoint::ModelFolder& source_;
  checkpoint::ShardPlan plan_;
  uint64_t total_bytes_ = 0;
  size_t shard_index_ = 0;
  uint64_t shard_left_ = 0;  // bytes
  std::optional<checkpoint::SafetensorsWriter> writer_;
  checkpoint::Manifest manifest_;
  bool published_ = false;
};

inline std::vector<checkpoint::TensorSpec> with_dtype(std::vector<checkpoint::TensorSpec> tensors,
                                                      checkpoint::Dtype dtype) {
  for (checkpoint::TensorSpec& spec : tensors) spec.dtype = dtype;
  return tensors;
}

inline void require_output_dtype(checkpoint::Dtype dtype) {
  using checkpoint::Dtype;
  if (dtype != Dtype::kF32 && dtype != Dtype::kF16 && dtype != Dtype::kBF16)
    throw Error(ErrorKind::kUsage,
                "models are written as F32, F16 or BF16, not " + std::string(to_string(dtype)));
}

inline std::span<std::byte> piece_of(Bytes& bytes, checkpoint::Dtype dtype, uint64_t offset,
                                     size_t count) {
  const size_t size = size_bytes(dtype);
  return std::span(bytes).subspan(offset * size, count * size);
}

// Rejects a mean outside the range of the output's type.
inline void require_in_range(const Bytes& bytes, checkpoint::TensorSpec spec,
                             checkpoint::Dtype dtype, const Block& block) {
  spec.dtype = dtype;
  require_finite(bytes, spec, block.begin,
                 "the result as " + std::string(to_string(dtype)) + " (out of its range)");
}

// Serialises the caller's callback over several writers.
class Progress {
 public:
  Progress(const Options& options, uint64_t total_bytes)
      : options_(options), total_bytes_(total_bytes) {}

  // `Output` has a function write(bytes), and outlives the result.
  template <class Output>
  Write counted(Output& output) {
    return [this, &output](std::span<const std::byte> bytes) {
      if (options_.spare != nullptr) options_.spare->release(bytes.size());
      output.write(bytes);
      if (!options_.on_progress) return;
      const std::lock_guard lock(mutex_);
      done_bytes_ += bytes.size();
      options_.on_progress(done_bytes_, total_bytes_);
    };
  }

 private:
  const Options& options_;
  const uint64_t total_bytes_;
  std::mutex mutex_;
  uint64_t done_bytes_ = 0;
};

}  // namespace xffl::aggregate
