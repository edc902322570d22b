// How it works: one thread reads some thousands of a parameter's values into a buffer that stays in
// the cache, and rounds them into the writer's memory; the writer's threads write and hash that
// memory. No float32 copy of a parameter exists. More threads would not help: OpenMP's threads spin
// at every block, and SHA-256 is slower than one thread.
#include <torch/types.h>

#include <algorithm>
#include <array>

#include "xffl/base/file.h"
#include "xffl/llama/weights.h"

namespace xffl::llama {
namespace {

constexpr int64_t kCachedElements = 4096;

std::string_view dtype_name(checkpoint::Dtype dtype) {
  if (dtype == checkpoint::Dtype::kBF16) return "bfloat16";
  return dtype == checkpoint::Dtype::kF16 ? "float16" : "float32";
}

// Elements [begin, begin + to.size() / width) in the stored dtype.
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
