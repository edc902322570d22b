// How it works: a file that is complete is hashed to its end, synced and renamed beside the next
// one's writing: SHA-256 goes front to back, and one core's of it is slower than the rest.
#include <algorithm>
#include <future>

#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/checkpoint/model_folder.h"

namespace xffl::checkpoint {

struct ModelWriter::State {
  std::filesystem::path folder;
  ShardPlan plan;
  size_t shard_index = 0;   // of the file that `writer` writes
  size_t tensor_index = 0;  // in that shard, of the tensor that the next byte belongs to
  uint64_t tensor_written = 0;
  std::optional<SafetensorsWriter> writer;
  std::vector<std::future<ManifestFile>> finishing;  // waits for its thread when it goes

  void open_shard() {
    const ShardPlan::Shard& shard = plan.shards[shard_index];
    writer.emplace(folder / shard.filename, shard.tensors);
    tensor_index = 0;
    skip_complete_tensors();
  }

  // Steps over tensors whose bytes are all written, those of no bytes included.
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

  // Whose tensor the next `size` bytes belong to: a file that has them to come is open.
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

  // Finishes complete files, and opens the next until one wants bytes; false after the last.
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
