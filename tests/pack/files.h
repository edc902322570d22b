// Test data for packing.
#pragma once

#include <bit>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "xffl/base/file.h"
#include "xffl/base/sha256.h"
#include "xffl/pack/pack.h"

namespace xffl::pack {

inline void write_bytes(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

inline std::string read_bytes(const std::filesystem::path& path) {
  return read_file(path, 1u << 30);
}

inline checkpoint::ManifestFile described(const std::filesystem::path& path) {
  return {path.filename().string(), std::filesystem::file_size(path), sha256_file(path)};
}

inline uint16_t bf16_of(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/// Random BF16 weights before and after an update with standard deviation `step`.
struct Weights {
  std::string before, after;
};
inline Weights weights(size_t count, float step, unsigned seed = 1) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  Weights made;
  const auto put = [](std::string& to, uint16_t word) {
    to.push_back(static_cast<char>(word & 0xff));
    to.push_back(static_cast<char>(word >> 8));
  };
  for (size_t i = 0; i < count; ++i) {
    const float weight = 0.02f * normal(generator);
    put(made.before, bf16_of(weight));
    put(made.after, bf16_of(weight + step * normal(generator)));
  }
  return made;
}

inline std::string noise(size_t bytes, unsigned seed) {
  std::mt19937 generator(seed);
  std::string text(bytes, '\0');
  for (char& each : text) each = static_cast<char>(generator());
  return text;
}

}  // namespace xffl::pack
