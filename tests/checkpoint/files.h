// Small files for the tests of this folder.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "support/thrown.h"
#include "xffl/base/error.h"
#include "xffl/checkpoint/safetensors.h"

namespace xffl::checkpoint {

inline void write_text(const std::filesystem::path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary) << text;
}

/// A safetensors file with this header, unchecked, and `data_size` zero bytes of data.
inline std::string with_header(std::string_view header, size_t data_size) {
  const uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, sizeof length);
  return file + std::string(header) + std::string(data_size, '\0');
}

inline std::vector<std::byte> bytes_of(const std::vector<float>& values) {
  const auto view = std::as_bytes(std::span(values));
  return {view.begin(), view.end()};
}

using test::Thrown;
using test::thrown_by;

}  // namespace xffl::checkpoint
