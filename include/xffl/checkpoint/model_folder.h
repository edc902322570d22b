// An HF model folder: config.json, model.safetensors or model-0000i-of-0000n.safetensors with
// model.safetensors.index.json, and the tokenizer's files, which xffl copies unchanged. An adapter
// folder (lora.h) instead holds adapter_config.json and adapter_model.safetensors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "xffl/checkpoint/block_hashes.h"
#include "xffl/checkpoint/llama_config.h"
#include "xffl/checkpoint/safetensors.h"

namespace xffl::checkpoint {

inline constexpr std::string_view kAdapterName = "adapter_model.safetensors";
inline constexpr uint64_t kMaxTokenizerFileBytes = 256u << 20;

/// A read-only view of all tensors of a folder with one or more files.
class ModelFolder {
 public:
  /// Opens every shard. The index must name exactly the tensors of the shards, and only plain file
  /// names in this folder ("model-00001-of-00002.safetensors": letters, digits, '.', '_', '-').
  /// Throws kCorrupt, or kNotFound without safetensors files; the message then names pickled
  /// weights.
  ///
  /// With `hashes`, opening verifies the files without tensors and the headers, and verify() the
  /// tensors. Both throw kCorrupt, naming the damaged file.
  explicit ModelFolder(const std::filesystem::path& folder, Hashes hashes = {});

  const std::filesystem::path& path() const { return folder_; }
  /// True when the tensors come from adapter_model.safetensors.
  bool is_adapter() const { return is_adapter_; }
  /// Sorted by name.
  const std::vector<TensorSpec>& tensors() const { return tensors_; }
  bool contains(std::string_view name) const;
  const TensorSpec& spec(std::string_view name) const;
  std::span<const std::byte> data(std::string_view name) const;
  /// Verifies the blocks that hold `part`, bytes of data(), each block once. Thread-safe. One call
  /// may return while another thread still verifies the same block: a result computed from the
  /// bytes is valid when verify() has returned in all threads.
  void verify(std::span<const std::byte> part) const;
  /// Verifies the blocks that verify() has not verified, and again the files without tensors. After
  /// this call all files are known to have the bytes that their writer wrote.
  void verify_all() const;
  /// The files that copy_tokenizer_files() copies. With hashes, only files that were written with
  /// the folder.
  std::vector<std::string> tokenizer_files() const;
  /// The content of a file without tensors. With hashes, throws kCorrupt for a missing or damaged
  /// file.
  std::string read_text(const std::string& name, uint64_t max_bytes) const;

 private:
  void check_other_files() const;
  void add_file(const std::string& name);
  void add_indexed_files();
  const SafetensorsFile& file_of(std::string_view name) const;

  std::filesystem::path folder_;
  Hashes hashes_;
  bool is_adapter_ = false;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, size_t, std::less<>> file_of_;
  std::vector<TensorSpec> tensors_;
};

/// Throws kRejected with the first tensor that is missing, extra, or of another shape or dtype.
/// With `any_float`, F32, F16 and BF16 count as the same dtype. `origin` names the model in errors.
void check_same_schema(const std::vector<TensorSpec>& found,
                       const std::vector<TensorSpec>& expected, bool any_float,
                       std::string_view origin);

/// The file of each tensor. plan_shards() fills the files greedily in the order of the tensors, up
/// to a maximum size; a larger tensor gets a file of its own.
struct ShardPlan {
  struct Shard {
    std::string filename;
    std::vector<TensorSpec> tensors;
  };
  std::vector<Shard> shards;
  std::string index_json;  // empty for a single file
};
ShardPlan plan_shards(const std::vector<TensorSpec>& tensors, uint64_t max_shard_bytes);

/// Writes a whole model folder, tensor by tensor, in the order of `tensors`; creates `folder`.
class ModelWriter {
 public:
  ModelWriter(std::filesystem::path folder, const std::vector<TensorSpec>& tensors,
              uint64_t max_shard_bytes = 5ull << 30);
  ~ModelWriter();
  ModelWriter(ModelWriter&&) noexcept;

  /// Appends the next bytes in tensor order; a piece may not cross a tensor's end.
  void write(std::span<const std::byte> bytes);
  /// As SafetensorsWriter::write(), but the bytes may not cross a tensor's end.
  void write(uint64_t size, size_t width, const MakeBytes& make);
  /// Finishes the last file and writes the index. Each file appears by rename; the caller renames
  /// the folder. Returns the manifest entries of the tensor files.
  std::vector<ManifestFile> finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Copies the files that describe tokens and generation (tokenizer*, special_tokens_map.json,
/// *.model, vocab.json, merges.txt, generation_config.json, chat_template*) from one folder to
/// another; skips absent files.
void copy_tokenizer_files(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace xffl::checkpoint
