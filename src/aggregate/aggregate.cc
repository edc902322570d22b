#include "xffl/aggregate/aggregate.h"

#include <array>

#include "output_folder.h"
#include "xffl/base/file.h"
#include "xffl/checkpoint/lora.h"

namespace xffl::aggregate {

namespace fs = std::filesystem;
using checkpoint::Dtype;
using checkpoint::TensorSpec;

namespace {

// Writes one output with the configuration of `source`; compute(block, bytes) fills the bytes of a
// block.
checkpoint::Manifest write_model(const std::vector<TensorSpec>& tensors,
                                 const checkpoint::ModelFolder& source, const fs::path& out,
                                 const Options& options, const Sources* sources,
                                 const std::function<void(const Block&, Bytes&)>& compute) {
  OutputFolder folder(out, tensors, source, options.max_shard_bytes);
  require_space(out.parent_path(), folder.total_bytes());
  Progress progress(options, folder.total_bytes());
  run_pipeline(BlockList(tensors), options.num_threads,
               [&](const Block& block, std::span<Bytes> outputs) {
                 const TensorSpec& spec = tensors[block.tensor_index];
                 outputs[0].resize(block.count * size_bytes(spec.dtype));
                 compute(block, outputs[0]);
                 require_in_range(outputs[0], spec, spec.dtype, block);
               },
               {progress.counted(folder)});
  folder.finish();
  source.verify_all();
  if (sources != nullptr) sources->verify_all();
  folder.publish();
  return folder.manifest();
}

// Adapters with different alpha or rank scale B A differently; their mean is not a valid adapter.
void require_same_adapters(const std::vector<Input>& inputs) {
  const checkpoint::LoraConfig first = checkpoint::read_lora_config(inputs.front().folder);
  for (const Input& input : inputs) {
    if (!checkpoint::read_lora_config(input.folder).applies_as(first))
      throw Error(ErrorKind::kRejected,
                  input.folder.string() + " and " + inputs.front().folder.string() +
                      ": adapters with different rank, alpha, "
                      "use_rslora, use_dora, target_modules or modules_to_save cannot be averaged");
  }
}

}  // namespace

void average_weights(std::vector<Input> inputs, Dtype dtype, const fs::path& out,
                     const Options& options) {
  require_output_dtype(dtype);
  const std::vector<Input> unsorted = inputs;
  const Sources sources(std::move(inputs));
  if (sources.first().is_adapter()) require_same_adapters(unsorted);
  const std::vector<TensorSpec> tensors = with_dtype(sources.tensors(), dtype);
  write_model(tensors, sources.first(), out, options, &sources,
              [&](const Block& block, Bytes& bytes) {
                const Sources::Reader reader(sources, block);
                for_each_piece(block.count, [&](uint64_t offset, size_t count) {
                  std::array<double, kMaxPiece> values;
                  const std::span<double> mean(values.data(), count);
                  reader.mean(offset, mean);
                  round_to(mean, dtype, piece_of(bytes, dtype, offset, count));
                });
              });
}

checkpoint::Manifest convert(const fs::path& model, Dtype dtype, const fs::path& out,
                             const Options& options) {
  require_output_dtype(dtype);
  const checkpoint::ModelFolder source(model, options.hashes);
  const std::vector<TensorSpec>& from = source.tensors();
  require_float(from, model.string());
  return write_model(with_dtype(from, dtype), source, out, options, nullptr,
                     [&](const Block& block, Bytes& bytes) {
                       const TensorSpec& spec = from[block.tensor_index];
                       const auto data = block_bytes(source.data(spec.name), spec.dtype, block);
                       source.verify(data);
                       const PageWindow window(data);
                       require_finite(data, spec, block.begin, model.string());
                       for_each_piece(block.count, [&](uint64_t offset, size_t count) {
                         std::array<float, kMaxPiece> values;
                         const size_t size = size_bytes(spec.dtype);
                         to_float(data.subspan(offset * size, count * size), spec.dtype,
                                  std::span(values.data(), count));
                         from_float(std::span(values.data(), count), dtype,
                                    piece_of(bytes, dtype, offset, count));
                       });
                     });
}

}  // namespace xffl::aggregate
