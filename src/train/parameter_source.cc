#include "parameter_source.h"

#include <torch/types.h>

#include <string>

#include "xffl/base/error.h"
#include "xffl/llama/weights.h"

namespace xffl::train {

void ParameterSource::read(const llama::ParameterSpec& spec, int64_t begin, at::Tensor out) const {
  if (files_) return llama::read_parameter(*files_, spec, begin, out);
  const at::Tensor host = at::empty(out.sizes(), at::kFloat);
  checkpoint::initialize_lora({spec.name, checkpoint::Dtype::kF32, spec.shape}, seed_, begin,
                              {host.mutable_data_ptr<float>(), static_cast<size_t>(host.numel())});
  out.copy_(host);
}

void ParameterSource::read(const std::vector<llama::ParameterSpec>& specs,
                           shard::FlatParameters& parameters) const {
  for (size_t i = 0; i < specs.size(); ++i) {
    const shard::Range range = parameters.master_range(i);
    if (range.count == 0) continue;
    const at::Tensor part = parameters.master_part(i);
    if (part.scalar_type() == at::kFloat) {
      read(specs[i], range.begin, part);
      continue;
    }
    const at::Tensor wide = at::empty({range.count}, at::kFloat);
    read(specs[i], range.begin, wide);
    parameters.set_master_part(i, wide);
  }
  parameters.refresh_compute();
}

ParameterSource trained_source(const std::filesystem::path& folder, const LoadOptions& options) {
  if (!options.lora) return ParameterSource(folder);
  return options.adapter.empty() ? ParameterSource(options.lora_seed)
                                 : ParameterSource(options.adapter);
}

void check_adapter(const LoadOptions& options, const checkpoint::LlamaConfig& config) {
  if (options.adapter.empty()) return;
  const checkpoint::LoraConfig found = checkpoint::read_lora_config(options.adapter);
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorKind::kRejected, options.adapter.string() +
                                          ": the given adapter has another " + what +
                                          " than the job's training.lora");
  };
  if (found.rank != options.lora->rank)
    refuse("rank (" + std::to_string(found.rank) + ", not " + std::to_string(options.lora->rank) +
           ")");
  if (found.alpha != options.lora->alpha) refuse("alpha");
  if (found.target_modules != options.lora->target_modules) refuse("target_modules");
  checkpoint::check_lora_tensors(checkpoint::ModelFolder(options.adapter), config, *options.lora);
}

}  // namespace xffl::train
