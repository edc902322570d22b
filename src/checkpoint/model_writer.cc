// How it works: a thread hashes a complete file to its end, syncs and renames it while the next
// file is written. SHA-256 is sequential, and on one core it is slower than writing.
#include <algorithm>
#include <future>

#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/checkpoint/model_folder.h"

namespace xffl::checkpoint {

struct ModelWriter::State {
  std::filesystem::path folder;
  ShardPlan plan;
  size_t shard_index = 0;       // the shard of `writer`
  size_t tensor_index = 0;      // the next byte's tensor in that shard
  uint64_t tensor_written = 0;  // bytes of that tensor
  std::optional<SafetensorsWriter> writer;
  std::vector<std::future<ManifestFile>> finishing;  // the destructor waits for the threads

  void open_shard() {
    const ShardPlan::Shard& shard = plan.shards[shard_index];
    writer.emplace(folder / shard.filename, shard.tensors);
    tensor_index = 0;
    skip_complete_tensors();
  }

  // Steps over complete tensors, also over tensors without bytes.
  void skip_complete_tensors() {
    const auto& tensors = plan.shards[shard_index].tensors;
    while (tensor_index < tensors.size() && tensor_written == tensors[tensor_index].num_bytes()) {
      ++tensor_index;
      tensor_written = 0;
    }
  }

  bool shard_complete() const { return tensor_index == plan.shards[shard_index].tensors.size(); }

  void finish_file() {
    finishing.push_back(std::async(
        std::launch::async, [](SafetensorsWriter complete) { return complete.finish(); },
        std::move(*writer)));
    writer.reset();
  }

  // Opens the file of the next `size` bytes; throws unless one tensor has space for them.
  void check_fits(uint64_t size) {
    if (!open_next_shard()) {
      throw Error(ErrorKind::kInternal, "writing " + folder.string() + ": " + std::to_string(size) +
                                            " bytes more than the tensors have");
    }
    const TensorSpec& spec = plan.shards[shard_index].tensors[tensor_index];
    if (size > spec.num_bytes() - tensor_written) {
      throw Error(ErrorKind::kInternal, "writing " + folder.string() +
                                            ": a piece crosses the end of tensor '" + spec.name +
                                            "' of " + std::to_string(spec.num_bytes()) + " bytes");
    }
  }

  void add_written(uint64_t size) {
    tensor_written += size;
    skip_complete_tensors();
  }

  // Finishes complete files and opens the first incomplete file; false after the last file.
  bool open_next_shard() {
    while (shard_complete()) {
      if (shard_index + 1 == plan.shards.size()) return false;
      finish_file();
      ++shard_index;
      open_shard();
    }
    return true;
  }
};

ModelWriter::ModelWriter(std::filesystem::path folder, const std::vector<TensorSpec>& tensors,
                         uint64_t max_shard_bytes)
    : state_(std::make_unique<State>()) {
  state_->folder = std::move(folder);
  state_->plan = plan_shards(tensors, max_shard_bytes);
  make_dirs(state_->folder);
  state_->open_shard();
}

ModelWriter::~ModelWriter() = default;
ModelWriter::ModelWriter(ModelWriter&&) noexcept = default;

void ModelWriter::write(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  state_->check_fits(bytes.size());
  state_->writer->write(bytes);
  state_->add_written(bytes.size());
}

void ModelWriter::write(uint64_t size, size_t width, const MakeBytes& make) {
  if (size == 0) return;
  state_->check_fits(size);
  state_->writer->write(size, width, make);
  state_->add_written(size);
}

std::vector<ManifestFile> ModelWriter::finish() {
  State& state = *state_;
  if (state.open_next_shard()) {
    const TensorSpec& spec = state.plan.shards[state.shard_index].tensors[state.tensor_index];
    throw Error(ErrorKind::kInternal, "writing " + state.folder.string() + ": tensor '" +
                                          spec.name + "' has only " +
                                          std::to_string(state.tensor_written) + " of its " +
                                          std::to_string(spec.num_bytes()) + " bytes");
  }
  state.finish_file();
  std::vector<ManifestFile> files;
  for (std::future<ManifestFile>& file : state.finishing) files.push_back(file.get());
  if (!state.plan.index_json.empty()) {
    write_file_atomic(state.folder / "model.safetensors.index.json", state.plan.index_json);
  }
  return files;
}

}  // namespace xffl::checkpoint
