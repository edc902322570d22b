// One block of a packed file.
//
// A block of n raw bytes is two 32-bit little-endian words, one for the low plane and one for the
// high one, then the planes, n / 2 bytes each before they are made small, then the last byte of an
// odd n. Of a word the upper two bits say how the plane is stored (0: as it is, 1: zstd, 2: all
// bytes are the one that follows), the others how many bytes it takes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace xffl::pack {

inline constexpr size_t kBlockHeaderBytes = 8;

/// The most bytes that a block of `raw_bytes` takes.
constexpr size_t max_block_bytes(size_t raw_bytes) { return kBlockHeaderBytes + raw_bytes; }

/// How many bytes follow the block's header, which has kBlockHeaderBytes. Throws kCorrupt unless
/// they can be those of `raw_bytes` (a short message, for the caller to say where).
size_t body_bytes(std::span<const std::byte> header, size_t raw_bytes);

/// Not thread-safe: it has buffers and zstd's states of its own.
class BlockCodec {
 public:
  BlockCodec();
  ~BlockCodec();

  /// Fills `out` with the block of `raw`; `reference` has its size or is empty.
  void encode(std::span<const std::byte> raw, std::span<const std::byte> reference,
              std::vector<std::byte>& out);
  /// Fills `raw` from a block's header and body. Throws kCorrupt as body_bytes does.
  void decode(std::span<const std::byte> block, std::span<const std::byte> reference,
              std::span<std::byte> raw);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace xffl::pack
