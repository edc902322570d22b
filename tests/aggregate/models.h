// Small model folders for the tests of this folder.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "support/thrown.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/sha256.h"
#include "xffl/checkpoint/manifest.h"
#include "xffl/checkpoint/model_folder.h"

namespace xffl::aggregate {

using checkpoint::Dtype;

struct Tensor {
  std::vector<int64_t> shape;
  std::vector<float> values;
  Dtype dtype = Dtype::kF32;
};
using Tensors = std::map<std::string, Tensor>;

inline std::filesystem::path write_model(const std::filesystem::path& folder,
                                         const Tensors& tensors, uint64_t max_shard_bytes = 1 << 30,
                                         const std::string& config = R"({"model_type": "llama",
                                             "torch_dtype": "float32", "custom": [1, 2]})") {
  std::vector<checkpoint::TensorSpec> specs;
  for (const auto& [name, tensor] : tensors) specs.push_back({name, tensor.dtype, tensor.shape});
  checkpoint::ModelWriter writer(folder, specs, max_shard_bytes);
  for (const auto& [name, tensor] : tensors) {
    std::vector<std::byte> bytes(tensor.values.size() * size_bytes(tensor.dtype));
    from_float(tensor.values, tensor.dtype, bytes);
    writer.write(bytes);
  }
  writer.finish();
  std::ofstream(folder / "config.json") << config;
  std::ofstream(folder / "tokenizer.json") << R"({"version": "1.0"})";
  return folder;
}

inline std::vector<float> read_tensor(const std::filesystem::path& folder,
                                      const std::string& name) {
  const checkpoint::ModelFolder model(folder);
  const checkpoint::TensorSpec& spec = model.spec(name);
  std::vector<float> values(static_cast<size_t>(spec.num_elements()));
  to_float(model.data(name), spec.dtype, values);
  return values;
}

// Numbers that differ, look like weights, and are the same on every machine.
inline std::vector<float> some_values(size_t count, uint32_t seed) {
  std::vector<float> values(count);
  uint32_t state = seed * 2654435761u + 1;
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-36f;
  }
  return values;
}

inline Tensors some_model(uint32_t seed, Dtype dtype = Dtype::kF32) {
  return {{"embed.weight", {{1000, 300}, some_values(300'000, seed), dtype}},
          {"norm.weight", {{300}, some_values(300, seed + 100), dtype}},
          {"out.weight", {{300, 7}, some_values(2100, seed + 200), dtype}}};
}

inline std::string root_of(const std::filesystem::path& folder) {
  return checkpoint::make_manifest(folder).root_sha256();
}

using test::Thrown;
using test::thrown_by;

inline size_t num_entries(const std::filesystem::path& folder) {
  using Iterator = std::filesystem::directory_iterator;
  return static_cast<size_t>(std::distance(Iterator(folder), Iterator()));
}

}  // namespace xffl::aggregate
