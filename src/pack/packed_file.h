// The header of a packed file, and the raw sizes of its blocks.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>

#include "xffl/checkpoint/manifest.h"

namespace xffl::pack {

inline constexpr size_t kFileHeaderBytes = 88;
inline constexpr uint32_t kMaxBlockBytes = 4u << 20;

struct FileHeader {
  uint32_t block_bytes = 0;
  uint64_t raw_bytes = 0;
  std::string raw_sha256;
  std::string reference_sha256;  // empty: packed without a reference

  uint64_t num_blocks() const { return (raw_bytes + block_bytes - 1) / block_bytes; }
  /// The number of raw bytes of a block.
  size_t bytes_of(uint64_t block) const {
    const uint64_t left = raw_bytes - block * block_bytes;
    return static_cast<size_t>(left < block_bytes ? left : block_bytes);
  }
};

std::array<std::byte, kFileHeaderBytes> format_header(const FileHeader& header);

/// Throws kCorrupt, naming `path`, also when `bytes` is shorter than a header.
FileHeader parse_header(std::span<const std::byte> bytes, const std::filesystem::path& path);

}  // namespace xffl::pack
