// Writes an HF model or adapter folder as "<out>.tmp-<pid>-<start>"; publish() renames it.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "xffl/checkpoint/manifest.h"
#include "xffl/checkpoint/model_folder.h"
#include "xffl/checkpoint/safetensors.h"

namespace xffl::aggregate {

class OutputFolder {
 public:
  /// Throws kRejected when `out` exists. Removes temporary folders of dead processes for `out`. An
  /// adapter's tensors go into one file.
  OutputFolder(std::filesystem::path out, std::vector<checkpoint::TensorSpec> tensors,
               uint64_t max_shard_bytes, bool is_adapter);
  ~OutputFolder();  // removes the temporary folder unless published
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

  uint64_t total_bytes() const { return total_bytes_; }
  /// The next bytes of the tensors, in order; a piece does not cross a tensor's end.
  void write(std::span<const std::byte> bytes);
  /// Completes the files: index, config.json and tokenizer files from `source`, or its
  /// adapter_config.json, manifest.json. The weights are hashed while they are written, not read
  /// again.
  void finish(const std::filesystem::path& source);
  /// Renames the folder to `out`, durably.
  void publish();

 private:
  void open_shard();
  void close_complete_shards();
  void write_config(const std::filesystem::path& source);

  std::filesystem::path out_;
  std::filesystem::path temp_;
  checkpoint::Dtype dtype_;
  bool is_adapter_;
  checkpoint::ShardPlan plan_;
  uint64_t total_bytes_ = 0;
  size_t shard_index_ = 0;
  uint64_t shard_left_ = 0;  // bytes
  std::optional<checkpoint::SafetensorsWriter> writer_;
  checkpoint::Manifest manifest_;
  bool published_ = false;
};

}  // namespace xffl::aggregate
