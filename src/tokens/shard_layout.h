// The header and the layout of a token shard, shared by reader and writer.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "xffl/tokens/token_shard.h"

namespace xffl::tokens {

inline constexpr size_t kHeaderBytes = 64;
inline constexpr uint32_t kShardVersion = 1;
inline constexpr uint32_t kTargetsVersion = 2;        // version 1 with targets
inline constexpr uint64_t kMaxVocabSize = INT32_MAX;  // ids are int32 everywhere else
inline constexpr uint64_t kMaxSequenceLength = INT32_MAX;

struct ShardLayout {
  size_t token_bytes = 2;
  uint64_t offsets_begin = 0;  // the file offset of the offsets; tokens begin at kHeaderBytes
  uint64_t num_offsets = 0;
  uint64_t targets_begin = 0;  // the end of the offsets
  uint64_t num_target_words = 0;
  uint64_t file_bytes = 0;
};

/// 2 when every id below `vocab_size` fits in 16 bits, else 4.
size_t token_bytes_for(uint64_t vocab_size);

/// The layout for these counts. Throws kCorrupt naming `path` when a size does not fit in 63 bits.
ShardLayout layout_of(const ShardInfo& info, size_t token_bytes, const std::filesystem::path& path);

std::array<std::byte, kHeaderBytes> encode_header(const ShardInfo& info, size_t token_bytes);

/// Reads and checks the header's fields and the file's size. Throws kCorrupt.
std::pair<ShardInfo, ShardLayout> decode_header(std::span<const std::byte> file,
                                                const std::filesystem::path& path);

}  // namespace xffl::tokens
