// How writing works: one thread reads some thousands of a parameter's values into a buffer that
// stays in the cache, and rounds the values into the writer's memory. The writer's threads write
// and hash that memory. No float32 copy of a parameter exists. More threads would not help:
// OpenMP's threads spin at every block, and SHA-256 is slower than one thread.
#include "xffl/llama/model_files.h"

#include <ATen/Parallel.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <set>

#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/random.h"

namespace xffl::llama {
namespace {

constexpr int64_t kReadGrain = 1 << 16;  // elements that are worth a thread

uint64_t hash_name(const std::string& name, uint64_t seed) {
  uint64_t state = splitmix64_mix(seed + kSplitMix64Step);
  for (const unsigned char c : name) state = splitmix64_mix((state ^ c) + kSplitMix64Step);
  return state;
}

// Maps bits to (0, 1].
double uniform(uint64_t bits) { return static_cast<double>((bits >> 11) + 1) * 0x1.0p-53; }

// Fills pairs of elements 2p and 2p + 1 by Box and Muller's method; the values do not depend on the
// thread.
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

constexpr int64_t kCachedElements = 4096;

std::string_view dtype_name(checkpoint::Dtype dtype) {
  if (dtype == checkpoint::Dtype::kBF16) return "bfloat16";
  return dtype == checkpoint::Dtype::kF16 ? "float16" : "float32";
}

// Converts elements [begin, begin + to.size() / width) to the stored dtype.
void convert(const Values& values, int64_t begin, checkpoint::Dtype dtype,
             std::span<std::byte> to) {
  const auto width = checkpoint::size_bytes(dtype);
  const auto count = static_cast<int64_t>(to.size() / width);
  std::array<float, kCachedElements> cached;
  for (int64_t done = 0; done < count; done += kCachedElements) {
    const auto n = static_cast<size_t>(std::min(kCachedElements, count - done));
    const std::span<float> piece(cached.data(), n);
    values.read(begin + done, piece);
    checkpoint::from_float(piece, dtype, to.subspan(static_cast<size_t>(done) * width, n * width));
  }
}

template <class Writer>  // of bytes
void write_values(Writer& writer, const ParameterSpec& spec, const Values& values,
                  checkpoint::Dtype dtype) {
  const size_t width = checkpoint::size_bytes(dtype);
  const auto size = static_cast<uint64_t>(spec.num_elements()) * width;
  writer.write(size, width, [&](uint64_t offset, std::span<std::byte> to) {
    const auto first = static_cast<int64_t>(offset / width);
    const auto count = static_cast<int64_t>(to.size() / width);
    if (values.prepare) values.prepare(first, count);
    convert(values, first, dtype, to);
  });
}

template <class Writer>
void write_all(Writer& writer, const std::vector<ParameterSpec>& specs,
               const std::function<Values(size_t)>& values, checkpoint::Dtype dtype) {
  for (size_t i = 0; i < specs.size(); ++i) write_values(writer, specs[i], values(i), dtype);
}

std::vector<checkpoint::TensorSpec> tensor_specs(const std::vector<ParameterSpec>& specs,
                                                 checkpoint::Dtype dtype) {
  std::vector<checkpoint::TensorSpec> tensors;
  for (const ParameterSpec& spec : specs) tensors.push_back({spec.name, dtype, spec.shape});
  return tensors;
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

Values::Values(const at::Tensor& tensor) {
  const at::Tensor host = tensor.to(at::kCPU, at::kFloat).contiguous();
  read = [host](int64_t begin, std::span<float> out) {
    std::copy_n(host.const_data_ptr<float>() + begin, out.size(), out.begin());
  };
}

std::vector<checkpoint::ManifestFile> write_model(const std::filesystem::path& folder,
                                                  checkpoint::LlamaConfig config,
                                                  const std::vector<ParameterSpec>& specs,
                                                  const std::function<Values(size_t)>& values,
                                                  checkpoint::Dtype dtype) {
  checkpoint::ModelWriter writer(folder, tensor_specs(specs, dtype));
  write_all(writer, specs, values, dtype);
  auto files = writer.finish();
  config.torch_dtype = dtype_name(dtype);
  write_file_atomic(folder / "config.json", checkpoint::format_llama_config(config));
  return files;
}

std::vector<checkpoint::ManifestFile> write_adapter(const std::filesystem::path& folder,
                                                    const checkpoint::LoraConfig& lora,
                                                    const std::vector<ParameterSpec>& specs,
                                                    const std::function<Values(size_t)>& values,
                                                    checkpoint::Dtype dtype) {
  make_dirs(folder);
  checkpoint::SafetensorsWriter writer(folder / checkpoint::kAdapterName,
                                       tensor_specs(specs, dtype));
  write_all(writer, specs, values, dtype);
  auto file = writer.finish();
  write_file_atomic(folder / checkpoint::kAdapterConfigName, checkpoint::format_lora_config(lora));
  return {std::move(file)};
}

}  // namespace xffl::llama
