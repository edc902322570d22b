#include "xffl/llama/weights.h"

#include <ATen/Parallel.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <set>

#include "xffl/base/error.h"
#include "xffl/base/file.h"

namespace xffl::llama {
namespace {

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;
constexpr int64_t kWriteElements = 4 << 20;

// SplitMix64's output function (Steele et al., 2014): a counter becomes a random number.
uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

uint64_t hash_name(const std::string& name, uint64_t seed) {
  uint64_t state = mix(seed + kGolden);
  for (const unsigned char c : name) state = mix((state ^ c) + kGolden);
  return state;
}

// (0, 1]
double uniform(uint64_t bits) { return static_cast<double>((bits >> 11) + 1) * 0x1.0p-53; }

// Box and Muller's pair of element 2p and 2p + 1, whoever computes it.
void fill_normal(float* out, int64_t count, uint64_t stream, double deviation) {
  at::parallel_for(0, (count + 1) / 2, 1 << 14, [&](int64_t begin, int64_t end) {
    for (int64_t pair = begin; pair < end; ++pair) {
      const uint64_t counter = stream + static_cast<uint64_t>(pair) * 2 * kGolden;
      const double radius = deviation * std::sqrt(-2 * std::log(uniform(mix(counter))));
      const double angle = 2 * std::numbers::pi * uniform(mix(counter + kGolden));
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
  if (!folder.contains(spec.name)) reject("is missing: config.json asks for it");
  const checkpoint::TensorSpec& found = folder.spec(spec.name);
  if (found.shape != spec.shape) {
    reject("has the shape " + checkpoint::format_shape(found.shape) +
           ", but config.json makes it " + checkpoint::format_shape(spec.shape));
  }
  if (found.dtype != checkpoint::Dtype::kF32 && found.dtype != checkpoint::Dtype::kBF16 &&
      found.dtype != checkpoint::Dtype::kF16) {
    reject("has the dtype " + std::string(checkpoint::to_string(found.dtype)) +
           ", expected F32, BF16 or F16");
  }
}

std::string_view dtype_name(checkpoint::Dtype dtype) {
  if (dtype == checkpoint::Dtype::kBF16) return "bfloat16";
  return dtype == checkpoint::Dtype::kF16 ? "float16" : "float32";
}

at::ScalarType scalar_type(checkpoint::Dtype dtype) {
  if (dtype == checkpoint::Dtype::kBF16) return at::kBFloat16;
  return dtype == checkpoint::Dtype::kF16 ? at::kHalf : at::kFloat;
}

// Calls body(begin, count) for parts of `count` elements, by as many threads as LibTorch has.
void for_each_part(int64_t count, const std::function<void(int64_t, int64_t)>& body) {
  at::parallel_for(0, count, 1 << 16,
                   [&](int64_t begin, int64_t end) { body(begin, end - begin); });
}

template <class Writer>  // of bytes
void write_values(Writer& writer, const at::Tensor& value, checkpoint::Dtype dtype,
                  std::vector<std::byte>& buffer) {
  const size_t width = checkpoint::size_bytes(dtype);
  if (!value.is_cpu()) {  // the device rounds, to nearest, too; half as many bytes cross the bus
    const at::Tensor host = value.to(scalar_type(dtype)).contiguous().to(at::kCPU);
    return writer.write({static_cast<const std::byte*>(host.const_data_ptr()),
                         static_cast<size_t>(host.numel()) * width});
  }
  const at::Tensor flat = value.contiguous().view({-1});
  const float* const values = flat.const_data_ptr<float>();
  for (int64_t first = 0; first < flat.numel(); first += kWriteElements) {
    const int64_t count = std::min(kWriteElements, flat.numel() - first);
    for_each_part(count, [&](int64_t begin, int64_t part) {
      checkpoint::from_float({values + first + begin, static_cast<size_t>(part)}, dtype,
                             {buffer.data() + static_cast<size_t>(begin) * width,
                              static_cast<size_t>(part) * width});
    });
    writer.write({buffer.data(), static_cast<size_t>(count) * width});
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
                    at::Tensor out) {
  const checkpoint::Dtype dtype = folder.spec(spec.name).dtype;
  const size_t width = checkpoint::size_bytes(dtype);
  const auto bytes = folder.data(spec.name).subspan(static_cast<size_t>(begin) * width,
                                                    static_cast<size_t>(out.numel()) * width);
  // A GPU gets the file's own bytes and widens them itself: half as many cross the bus.
  const at::Tensor host =
      out.is_cpu() ? out
                   : at::empty(out.sizes(), at::TensorOptions()
                                                .dtype(scalar_type(dtype))
                                                .pinned_memory(out.is_cuda()));
  auto* const values = static_cast<std::byte*>(host.mutable_data_ptr());
  for_each_part(out.numel(), [&](int64_t first, int64_t count) {
    const auto offset = static_cast<size_t>(first), part = static_cast<size_t>(count);
    const auto from = bytes.subspan(offset * width, part * width);
    if (out.is_cpu())
      checkpoint::to_float(from, dtype, {reinterpret_cast<float*>(values) + offset, part});
    else
      std::copy(from.begin(), from.end(), values + offset * width);
  });
  if (!out.is_cpu()) out.copy_(host, /*non_blocking=*/true);
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

std::vector<checkpoint::ManifestFile> write_model(const std::filesystem::path& folder,
                                                  checkpoint::LlamaConfig config,
                                                  const std::vector<ParameterSpec>& specs,
                                                  const std::function<at::Tensor(size_t)>& value,
                                                  checkpoint::Dtype dtype) {
  std::vector<checkpoint::TensorSpec> tensors;
  for (const ParameterSpec& spec : specs) tensors.push_back({spec.name, dtype, spec.shape});
  checkpoint::ModelWriter writer(folder, tensors);
  std::vector<std::byte> buffer(static_cast<size_t>(kWriteElements) *
                                checkpoint::size_bytes(dtype));
  for (size_t i = 0; i < specs.size(); ++i) write_values(writer, value(i), dtype, buffer);
  auto files = writer.finish();
  config.torch_dtype = dtype_name(dtype);
  write_file_atomic(folder / "config.json", checkpoint::format_llama_config(config));
  return files;
}

std::vector<checkpoint::ManifestFile> write_adapter(const std::filesystem::path& folder,
                                                    const checkpoint::LoraConfig& lora,
                                                    const std::vector<ParameterSpec>& specs,
                                                    const std::function<at::Tensor(size_t)>& value,
                                                    checkpoint::Dtype dtype) {
  std::vector<checkpoint::TensorSpec> tensors;
  for (const ParameterSpec& spec : specs) tensors.push_back({spec.name, dtype, spec.shape});
  make_dirs(folder);
  checkpoint::SafetensorsWriter writer(folder / checkpoint::kAdapterName, tensors);
  std::vector<std::byte> buffer(static_cast<size_t>(kWriteElements) *
                                checkpoint::size_bytes(dtype));
  for (size_t i = 0; i < specs.size(); ++i) write_values(writer, value(i), dtype, buffer);
  auto file = writer.finish();
  write_file_atomic(folder / checkpoint::kAdapterConfigName, checkpoint::format_lora_config(lora));
  return {std::move(file)};
}

}  // namespace xffl::llama
