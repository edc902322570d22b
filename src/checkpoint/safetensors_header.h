// Parser and writer of the header of a safetensors file. A header is hostile until checked.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "xffl/checkpoint/safetensors.h"

namespace xffl::checkpoint {

inline constexpr uint64_t kMaxHeaderBytes = 8u << 20;
inline constexpr size_t kMaxTensors = 20'000;
inline constexpr size_t kMaxDimensions = 8;

struct TensorEntry {
  TensorSpec spec;
  uint64_t begin = 0;  // offset in the data
};

struct Header {
  uint64_t data_begin = 0;           // offset of the data in the file
  std::vector<TensorEntry> tensors;  // in the order of their data
  std::map<std::string, std::string> metadata;
};

/// Parses and checks the header; `file` holds the whole file's bytes, `origin` names the file in
/// errors. Throws kCorrupt.
Header parse_header(std::span<const std::byte> file, const std::string& origin);

/// The bytes before the data for these tensors in this order: length, JSON, spaces up to a multiple
/// of 8. Throws kRejected for tensors that parse_header rejects.
std::string format_header(const std::vector<TensorSpec>& tensors,
                          const std::map<std::string, std::string>& metadata,
                          const std::string& origin);

}  // namespace xffl::checkpoint
