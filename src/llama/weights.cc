#include "xffl/llama/weights.h"

#include <ATen/Parallel.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <set>

#include "xffl/base/error.h"
#include "xffl/base/random.h"

namespace xffl::llama {
namespace {

constexpr int64_t kReadGrain = 1 << 16;  // elements that are worth a thread

uint64_t hash_name(const std::string& name, uint64_t seed) {
  uint64_t state = splitmix64_mix(seed + kSplitMix64Step);
  for (const unsigned char c : name) state = splitmix64_mix((state ^ c) + kSplitMix64Step);
  return state;
}

// (0, 1]
double uniform(uint64_t bits) { return static_cast<double>((bits >> 11) + 1) * 0x1.0p-53; }

// Box and Muller's pair of elements 2p and 2p + 1, the same for every thread.
void fill_normal(float* out, int64_t count, uint64_t stream, double deviation) {
  at::parallel_for(0, (count + 1) / 2, 1 << 14, [&](int64_t begin, int64_t end) {
    for (int64_t pair = begin; pair < end; ++pair) {
      const uint64_t counter = stream + static_cast<uint64_t>(pair) * 2 * kSplitMix64Step;
      const double radius = deviation * std::sqrt(-2 * std::log(uniform(splitmix64_mix(counter))));
      const double angle =
          2 * std::numbers::pi * uniform(splitmix64_mix(counter + kSplitMix64Step));
      out[2 * pair] = static_cast<float>(radius * std::cos(angle));
      if (2 * pair + 1 < count) out[2 * pair + 1] = static_cast<float>(radius * std::sin(angle));
    }
  });
}

bool is_unused(const std::string& name, const std::set<std::string>& expected) {
  return (name == "lm_head.weight" && !expected.contains(name)) ||
         name.ends_with(".rotary_emb.inv_freq");
}

void check_parameter(const checkpoint::ModelFolder& folder, const ParameterSpec& spec) {
  const auto reject = [&](const std::string& problem) {
    throw Error(ErrorKind::kRejected,
                folder.path().string() + ": tensor " + spec.name + " " + problem);
  };
  if (!folder.contains(spec.name)) reject("is missing; config.json requires it");
  const checkpoint::TensorSpec& found = folder.spec(spec.name);
  if (found.shape != spec.shape) {
    reject("has the shape " + checkpoint::format_shape(found.shape) + "; config.json requires " +
           checkpoint::format_shape(spec.shape));
  }
  if (found.dtype != checkpoint::Dtype::kF32 && found.dtype != checkpoint::Dtype::kBF16 &&
      found.dtype != checkpoint::Dtype::kF16) {
    reject("has the dtype " + std::string(checkpoint::to_string(found.dtype)) +
           ", expected F32, BF16 or F16");
  }
}

}  // namespace

void check_parameters(const checkpoint::ModelFolder& folder,
                      const std::vector<ParameterSpec>& specs) {
  std::set<std::string> expected;
  for (const ParameterSpec& spec : specs) {
    check_parameter(folder, spec);
    expected.insert(spec.name);
  }
  for (const checkpoint::TensorSpec& found : folder.tensors()) {
    if (expected.contains(found.name) || is_unused(found.name, expected)) continue;
    throw Error(ErrorKind::kRejected,
                folder.path().string() + ": tensor " + found.name +
                    " does not belong to the LLaMA that config.json describes");
  }
}

void read_parameter(const checkpoint::ModelFolder& folder, const ParameterSpec& spec, int64_t begin,
                    std::span<float> out) {
  const checkpoint::Dtype dtype = folder.spec(spec.name).dtype;
  const size_t width = checkpoint::size_bytes(dtype);
  checkpoint::to_float(
      folder.data(spec.name).subspan(static_cast<size_t>(begin) * width, out.size() * width), dtype,
      out);
}

void read_parameter(const checkpoint::ModelFolder& folder, const ParameterSpec& spec, int64_t begin,
                    at::Tensor out) {
  const at::Tensor host = out.is_cpu() ? out : at::empty(out.sizes(), at::kFloat);
  auto* const values = host.mutable_data_ptr<float>();
  at::parallel_for(0, host.numel(), kReadGrain, [&](int64_t first, int64_t end) {
    read_parameter(folder, spec, begin + first, {values + first, static_cast<size_t>(end - first)});
  });
  if (!out.is_cpu()) out.copy_(host);
}

void initialize_parameter(const ParameterSpec& spec, double initializer_range, uint64_t seed,
                          at::Tensor out) {
  if (!spec.is_matrix()) {
    out.fill_(spec.name.ends_with(".bias") ? 0.0 : 1.0);
    return;
  }
  at::Tensor host = out.is_cpu() ? out : at::empty(out.sizes(), at::kFloat);
  fill_normal(host.mutable_data_ptr<float>(), host.numel(), hash_name(spec.name, seed),
              initializer_range);
  if (!out.is_cpu()) out.copy_(host);
}

}  // namespace xffl::llama
