#include "parameter_source.h"

#include <ATen/Parallel.h>
#include <torch/types.h>

#include <algorithm>
#include <string>
#include <vector>

#include "xffl/base/error.h"
#include "xffl/llama/weights.h"

namespace xffl::train {
namespace {

constexpr int64_t kReadElements = 1 << 15;  // of one read: 128 kB of float32

}  // namespace

void ParameterSource::read(const llama::ParameterSpec& spec, int64_t begin,
                           std::span<float> out) const {
  if (files_) return llama::read_parameter(*files_, spec, begin, out);
  checkpoint::initialize_lora({spec.name, checkpoint::Dtype::kF32, spec.shape}, seed_, begin, out);
}

// Copies from the file's pages to the masters in pieces that fit a thread's cache.
void ParameterSource::read_to_host(const llama::ParameterSpec& spec, size_t index,
                                   shard::FlatParameters& parameters) const {
  const shard::Range range = parameters.master_range(index);
  at::parallel_for(0, range.count, kReadElements, [&](int64_t first, int64_t end) {
    std::vector<float> cached(static_cast<size_t>(std::min(kReadElements, end - first)));
    for (int64_t begin = first; begin < end; begin += kReadElements) {
      const auto count = static_cast<size_t>(std::min(kReadElements, end - begin));
      const std::span<float> piece = std::span(cached).first(count);
      read(spec, range.begin + begin, piece);
      parameters.store_master_part(index, begin, piece);
    }
  });
}

// Uploads the file's 16-bit values, half the bytes of float32, and widens them on the device.
void ParameterSource::read_to_device(const llama::ParameterSpec& spec, size_t index,
                                     shard::FlatParameters& parameters,
                                     DeviceUpload& upload) const {
  const shard::Range range = parameters.master_range(index);
  std::span<const std::byte> bytes;
  at::ScalarType dtype = at::kFloat;
  size_t width = sizeof(float);
  if (files_) {
    const checkpoint::Dtype stored = files_->spec(spec.name).dtype;
    width = checkpoint::size_bytes(stored);
    bytes = files_->data(spec.name);
    if (stored != checkpoint::Dtype::kF32)
      dtype = stored == checkpoint::Dtype::kBF16 ? at::kBFloat16 : at::kHalf;
  }
  const auto fill = [&](int64_t begin, std::span<std::byte> to) {
    const auto count = to.size() / width;
    if (!files_)
      return read(spec, range.begin + begin, {reinterpret_cast<float*>(to.data()), count});
    const auto from = bytes.subspan(static_cast<size_t>(range.begin + begin) * width, to.size());
    std::copy(from.begin(), from.end(), to.begin());
  };
  upload.run(range.count, dtype, fill, [&](int64_t begin, const at::Tensor& values) {
    parameters.set_master_part(index, {begin, values.numel()}, values);
  });
}

void ParameterSource::read(const std::vector<llama::ParameterSpec>& specs,
                           shard::FlatParameters& parameters) const {
  std::optional<DeviceUpload> upload;
  for (size_t i = 0; i < specs.size(); ++i) {
    if (parameters.master_range(i).count == 0) continue;
    const at::Device device = parameters.master_part(i).device();
    if (device.is_cpu()) {
      read_to_host(specs[i], i, parameters);
      continue;
    }
    if (!upload) upload.emplace(device);
    read_to_device(specs[i], i, parameters, *upload);
  }
  // On a GPU the compute copies, including copies of host masters, are still missing.
  parameters.refresh_compute(parameters.copies_on_host());
}

ParameterSource trained_source(const std::filesystem::path& folder, const LoadOptions& options) {
  if (!options.lora) return ParameterSource(folder);
  return options.adapter.empty() ? ParameterSource(options.lora_seed)
                                 : ParameterSource(options.adapter);
}

void check_adapter(const LoadOptions& options, const checkpoint::LlamaConfig& config) {
  if (options.adapter.empty()) return;
  const checkpoint::LoraConfig found = checkpoint::read_lora_config(options.adapter);
  const auto reject = [&](const std::string& property) {
    throw Error(ErrorKind::kRejected, options.adapter.string() + ": the input adapter's " +
                                          property + " differs from the job's training.lora");
  };
  if (found.rank != options.lora->rank)
    reject("rank (" + std::to_string(found.rank) + ", not " + std::to_string(options.lora->rank) +
           ")");
  if (found.alpha != options.lora->alpha) reject("alpha");
  if (found.target_modules != options.lora->target_modules) reject("target_modules");
  checkpoint::check_lora_tensors(checkpoint::ModelFolder(options.adapter), config, *options.lora);
}

}  // namespace xffl::train
