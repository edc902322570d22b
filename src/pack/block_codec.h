// The codec for one block of a packed file.
//
// A block of n raw bytes consists of two 32-bit little-endian header words (low plane, high plane),
// the two stored planes (n / 2 bytes each before compression), and the last byte of an odd n. The
// upper two bits of a header word give the plane's method (0: stored, 1: zstd, 2: one byte that all
// bytes of the plane equal); the other bits give its stored size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace xffl::pack {

inline constexpr size_t kBlockHeaderBytes = 8;

/// The maximum size of a block of `raw_bytes`.
constexpr size_t max_block_bytes(size_t raw_bytes) { return kBlockHeaderBytes + raw_bytes; }

/// The number of bytes after the block's header (kBlockHeaderBytes). Throws kCorrupt for a header
/// that no block of `raw_bytes` has; the caller adds file and offset to the message.
size_t body_bytes(std::span<const std::byte> header, size_t raw_bytes);

/// Not thread-safe: owns buffers and zstd contexts.
class BlockCodec {
 public:
  BlockCodec();
  ~BlockCodec();

  /// Encodes `raw` into `out`; `reference` has the size of `raw` or is empty.
  void encode(std::span<const std::byte> raw, std::span<const std::byte> reference,
              std::vector<std::byte>& out);
  /// Decodes a block (header and body) into `raw`. Throws kCorrupt as body_bytes does.
  void decode(std::span<const std::byte> block, std::span<const std::byte> reference,
              std::span<std::byte> raw);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace xffl::pack
