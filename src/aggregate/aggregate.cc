#include "xffl/aggregate/aggregate.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>

#include "mean_kernels.h"
#include "output_folder.h"
#include "page_window.h"
#include "pipeline.h"
#include "sources.h"
#include "xffl/base/error.h"
#include "xffl/base/space.h"
#include "xffl/checkpoint/lora.h"

namespace xffl::aggregate {

namespace fs = std::filesystem;
using checkpoint::Dtype;
using checkpoint::TensorSpec;

namespace {

std::vector<TensorSpec> with_dtype(std::vector<TensorSpec> tensors, Dtype dtype) {
  for (TensorSpec& spec : tensors) spec.dtype = dtype;
  return tensors;
}

void require_output_dtype(Dtype dtype) {
  if (dtype != Dtype::kF32 && dtype != Dtype::kF16 && dtype != Dtype::kBF16)
    throw Error(ErrorKind::kUsage,
                "models are written as F32, F16 or BF16, not " + std::string(to_string(dtype)));
}

// body(offset, count) over pieces of at most kMaxPiece elements.
template <class Body>
void for_each_piece(uint64_t count, const Body& body) {
  for (uint64_t offset = 0; offset < count; offset += kMaxPiece)
    body(offset, static_cast<size_t>(std::min<uint64_t>(kMaxPiece, count - offset)));
}

std::span<std::byte> piece_of(Bytes& bytes, Dtype dtype, uint64_t offset, size_t count) {
  const size_t size = size_bytes(dtype);
  return std::span(bytes).subspan(offset * size, count * size);
}

// Finite inputs whose mean leaves the range of the output's type.
void require_in_range(const Bytes& bytes, TensorSpec spec, Dtype dtype, const Block& block) {
  spec.dtype = dtype;
  require_finite(bytes, spec, block.begin,
                 "the result as " + std::string(to_string(dtype)) + " (out of its range)");
}

// Serialises the caller's callback over several writers.
class Progress {
 public:
  Progress(const Options& options, uint64_t total_bytes)
      : options_(options), total_bytes_(total_bytes) {}

  Write counted(OutputFolder& folder) {
    return [this, &folder](std::span<const std::byte> bytes) {
      if (options_.spare != nullptr) options_.spare->release(bytes.size());
      folder.write(bytes);
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

// Where an output's configuration comes from.
struct Origin {
  fs::path folder;
  bool is_adapter;
};

// One output: compute(block, bytes) fills its bytes.
void write_model(const std::vector<TensorSpec>& tensors, const fs::path& out, const Origin& origin,
                 const Options& options, const std::function<void(const Block&, Bytes&)>& compute) {
  OutputFolder folder(out, tensors, options.max_shard_bytes, origin.is_adapter);
  require_space(out.parent_path(), folder.total_bytes());
  Progress progress(options, folder.total_bytes());
  run_pipeline(BlockList(tensors), thread_count(options.num_threads),
               [&](const Block& block, std::span<Bytes> outputs) {
                 const TensorSpec& spec = tensors[block.tensor_index];
                 outputs[0].resize(block.count * size_bytes(spec.dtype));
                 compute(block, outputs[0]);
                 require_in_range(outputs[0], spec, spec.dtype, block);
               },
               {progress.counted(folder)});
  folder.finish(origin.folder);
  folder.publish();
}

// master' = float32(master + mean) or float32(mean), and the same rounded to the published type.
class ServerStep {
 public:
  ServerStep(const checkpoint::ModelFolder& master, const Sources& updates, bool deltas,
             Dtype publish_dtype)
      : master_(master), updates_(updates), deltas_(deltas), publish_dtype_(publish_dtype) {}

  void operator()(const Block& block, std::span<Bytes> outputs) const {
    const TensorSpec& spec = updates_.tensors()[block.tensor_index];
    outputs[0].resize(block.count * size_bytes(Dtype::kF32));
    outputs[1].resize(block.count * size_bytes(publish_dtype_));
    const auto master = block_bytes(master_.data(spec.name), Dtype::kF32, block);
    const PageWindow window(deltas_ ? master : master.first(0));
    const Sources::Reader reader(updates_, block);
    for_each_piece(block.count, [&](uint64_t offset, size_t count) {
      std::array<double, kMaxPiece> values;
      const std::span<double> mean(values.data(), count);
      reader.mean(offset, mean);
      if (deltas_) add_master(master, spec, block.begin, offset, mean);
      step(mean, piece_of(outputs[0], Dtype::kF32, offset, count),
           piece_of(outputs[1], publish_dtype_, offset, count));
    });
    require_in_range(outputs[0], spec, Dtype::kF32, block);
    require_in_range(outputs[1], spec, publish_dtype_, block);
  }

 private:
  static void add_master(std::span<const std::byte> master, TensorSpec spec, uint64_t begin,
                         uint64_t offset, std::span<double> mean) {
    std::array<float, kMaxPiece> values;
    const auto bytes = master.subspan(offset * sizeof(float), mean.size() * sizeof(float));
    spec.dtype = Dtype::kF32;
    require_finite(bytes, spec, begin + offset, "the float32 master");
    std::memcpy(values.data(), bytes.data(), bytes.size());
    add(std::span(values.data(), mean.size()), mean);
  }

  void step(std::span<const double> values, std::span<std::byte> master,
            std::span<std::byte> published) const {
    std::array<float, kMaxPiece> rounded;
    round_to(values, Dtype::kF32, master);
    std::memcpy(rounded.data(), master.data(), master.size());
    from_float(std::span(rounded.data(), values.size()), publish_dtype_, published);
  }

  const checkpoint::ModelFolder& master_;
  const Sources& updates_;
  const bool deltas_;
  const Dtype publish_dtype_;
};

void require_master(const checkpoint::ModelFolder& master, const Sources& updates) {
  for (const TensorSpec& spec : master.tensors())
    if (spec.dtype != Dtype::kF32)
      throw Error(ErrorKind::kRejected, "the master " + master.path().string() + ": tensor '" +
                                            spec.name + "' is " +
                                            std::string(to_string(spec.dtype)) + "; expected F32");
  check_same_schema(updates.tensors(), master.tensors(), /*any_float=*/true, "the updates");
}

// Of adapters whose products are scaled otherwise the mean would be no adapter's.
void require_same_adapters(const std::vector<Input>& inputs) {
  const checkpoint::LoraConfig first = checkpoint::read_lora_config(inputs.front().folder);
  for (const Input& input : inputs) {
    const checkpoint::LoraConfig other = checkpoint::read_lora_config(input.folder);
    if (other.rank != first.rank || other.alpha != first.alpha ||
        other.target_modules != first.target_modules)
      throw Error(ErrorKind::kRejected, input.folder.string() + " and " +
                                            inputs.front().folder.string() +
                                            ": adapters of another rank, alpha or target_modules "
                                            "cannot be averaged");
  }
}

}  // namespace

void average_weights(std::vector<Input> inputs, Dtype dtype, const fs::path& out,
                     const Options& options) {
  require_output_dtype(dtype);
  const std::vector<Input> given = inputs;
  const Sources sources(std::move(inputs));
  if (sources.is_adapter()) require_same_adapters(given);
  const std::vector<TensorSpec> tensors = with_dtype(sources.tensors(), dtype);
  const Origin origin{sources.first().folder, sources.is_adapter()};
  write_model(tensors, out, origin, options, [&](const Block& block, Bytes& bytes) {
    const Sources::Reader reader(sources, block);
    for_each_piece(block.count, [&](uint64_t offset, size_t count) {
      std::array<double, kMaxPiece> values;
      const std::span<double> mean(values.data(), count);
      reader.mean(offset, mean);
      round_to(mean, dtype, piece_of(bytes, dtype, offset, count));
    });
  });
}

void server_step(const fs::path& master, std::vector<Input> updates, bool deltas,
                 Dtype publish_dtype, const fs::path& out_master, const fs::path& out_model,
                 const Options& options) {
  require_output_dtype(publish_dtype);
  const checkpoint::ModelFolder model(master);
  const Sources sources(std::move(updates));
  require_master(model, sources);
  const std::vector<TensorSpec>& tensors = model.tensors();
  OutputFolder new_master(out_master, tensors, options.max_shard_bytes, model.is_adapter());
  OutputFolder published(out_model, with_dtype(tensors, publish_dtype), options.max_shard_bytes,
                         model.is_adapter());
  const uint64_t total_bytes = new_master.total_bytes() + published.total_bytes();
  require_space(out_master.parent_path(), total_bytes);
  Progress progress(options, total_bytes);
  run_pipeline(BlockList(tensors), thread_count(options.num_threads),
               ServerStep(model, sources, deltas, publish_dtype),
               {progress.counted(new_master), progress.counted(published)});
  new_master.finish(master);
  published.finish(master);
  new_master.publish();
  published.publish();
}

void convert(const fs::path& model, Dtype dtype, const fs::path& out, const Options& options) {
  require_output_dtype(dtype);
  const checkpoint::ModelFolder source(model);
  const std::vector<TensorSpec>& from = source.tensors();
  require_float(from, model.string());
  const Origin origin{model, source.is_adapter()};
  write_model(with_dtype(from, dtype), out, origin, options, [&](const Block& block, Bytes& bytes) {
    const TensorSpec& spec = from[block.tensor_index];
    const auto data = block_bytes(source.data(spec.name), spec.dtype, block);
    const PageWindow window(data);
    require_finite(data, spec, block.begin, model.string());
    for_each_piece(block.count, [&](uint64_t offset, size_t count) {
      std::array<float, kMaxPiece> values;
      const size_t size = size_bytes(spec.dtype);
      to_float(data.subspan(offset * size, count * size), spec.dtype,
               std::span(values.data(), count));
      from_float(std::span(values.data(), count), dtype, piece_of(bytes, dtype, offset, count));
    });
  });
}

}  // namespace xffl::aggregate
