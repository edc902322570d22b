// The server step of a federation's round; `xffl aggregate` uses average_weights() instead.
#include <array>
#include <cstring>

#include "output_folder.h"
#include "xffl/base/file.h"
#include "xffl/kernels/cpu/mean.h"

namespace xffl::aggregate {

namespace fs = std::filesystem;
using checkpoint::Dtype;
using checkpoint::TensorSpec;

namespace {

// Computes master' = float32(master + mean) or float32(mean), and rounds master' to the published
// type.
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
    if (deltas_) master_.verify(master);
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
    kernels::add(std::span(values.data(), mean.size()), mean);
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

}  // namespace

Stepped server_step(const fs::path& master, std::vector<Input> updates, bool deltas,
                    Dtype publish_dtype, const fs::path& out_master, const fs::path& out_model,
                    const Options& options) {
  require_output_dtype(publish_dtype);
  const checkpoint::ModelFolder model(master, options.hashes);
  const Sources sources(std::move(updates));
  require_master(model, sources);
  const std::vector<TensorSpec>& tensors = model.tensors();
  OutputFolder new_master(out_master, tensors, model, options.max_shard_bytes);
  OutputFolder published(out_model, with_dtype(tensors, publish_dtype), model,
                         options.max_shard_bytes);
  const uint64_t total_bytes = new_master.total_bytes() + published.total_bytes();
  require_space(out_master.parent_path(), total_bytes);
  Progress progress(options, total_bytes);
  run_pipeline(BlockList(tensors), options.num_threads,
               ServerStep(model, sources, deltas, publish_dtype),
               {progress.counted(new_master), progress.counted(published)});
  new_master.finish();
  published.finish();
  if (deltas) model.verify_all();
  sources.verify_all();
  new_master.publish();
  published.publish();
  return {new_master.manifest(), published.manifest()};
}

}  // namespace xffl::aggregate
