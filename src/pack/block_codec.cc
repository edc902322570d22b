#include "block_codec.h"

#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "xffl/base/error.h"
#include "xffl/kernels/cpu/byte_planes.h"

namespace xffl::pack {
namespace {

constexpr int kLevel = 1;  // higher levels gain nothing on these planes
enum Method : uint32_t { kStored = 0, kZstd = 1, kConstant = 2 };
constexpr uint32_t kSizeMask = (1u << 30) - 1;

[[noreturn]] void corrupt(const std::string& problem) { throw Error(ErrorKind::kCorrupt, problem); }

struct Plane {
  Method method;
  size_t bytes;
};

Plane plane_of(const std::byte* header, size_t num_words) {
  uint32_t word;
  std::memcpy(&word, header, sizeof word);
  const uint32_t method = word >> 30;
  const size_t bytes = word & kSizeMask;
  const bool valid = (method == kStored && bytes == num_words) ||
                     (method == kZstd && bytes < num_words && bytes > 0) ||
                     (method == kConstant && bytes == 1 && num_words > 0);
  if (!valid)
    corrupt("a plane of " + std::to_string(num_words) + " bytes cannot be stored by method " +
            std::to_string(method) + " in " + std::to_string(bytes) + " bytes");
  return {static_cast<Method>(method), bytes};
}

}  // namespace

size_t body_bytes(std::span<const std::byte> header, size_t raw_bytes) {
  const size_t num_words = raw_bytes / 2;
  return plane_of(header.data(), num_words).bytes + plane_of(header.data() + 4, num_words).bytes +
         raw_bytes % 2;
}

struct BlockCodec::State {
  std::unique_ptr<ZSTD_CCtx, size_t (*)(ZSTD_CCtx*)> compress{nullptr, ZSTD_freeCCtx};
  std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx*)> decompress{nullptr, ZSTD_freeDCtx};
  std::vector<std::byte> low, high;

  void resize(size_t num_words) {
    low.resize(num_words);
    high.resize(num_words);
  }

  /// Appends the plane to `out`; returns its word in the block's header.
  uint32_t put(const std::vector<std::byte>& plane, std::vector<std::byte>& out) {
    const auto word = [](Method method, size_t bytes) {
      return static_cast<uint32_t>(method) << 30 | static_cast<uint32_t>(bytes);
    };
    if (plane.empty()) return word(kStored, 0);
    if (std::memcmp(plane.data(), plane.data() + 1, plane.size() - 1) == 0) {
      out.push_back(plane.front());
      return word(kConstant, 1);
    }
    if (!compress) compress.reset(ZSTD_createCCtx());
    if (!compress) throw std::bad_alloc();
    const size_t begin = out.size();
    out.resize(begin + plane.size());
    // The output buffer is one byte smaller than the plane: zstd fails unless the plane shrinks.
    const size_t bytes = ZSTD_compressCCtx(compress.get(), out.data() + begin, plane.size() - 1,
                                           plane.data(), plane.size(), kLevel);
    if (!ZSTD_isError(bytes)) {
      out.resize(begin + bytes);
      return word(kZstd, bytes);
    }
    std::copy(plane.begin(), plane.end(), out.begin() + static_cast<std::ptrdiff_t>(begin));
    return word(kStored, plane.size());
  }

  /// The plane's bytes: `from` for a stored plane, else decoded into `buffer`.
  const std::byte* get(const Plane& plane, const std::byte* from, std::vector<std::byte>& buffer) {
    if (plane.method == kStored) return from;
    if (plane.method == kConstant) {
      std::fill(buffer.begin(), buffer.end(), *from);
      return buffer.data();
    }
    if (!decompress) decompress.reset(ZSTD_createDCtx());
    if (!decompress) throw std::bad_alloc();
    const size_t bytes =
        ZSTD_decompressDCtx(decompress.get(), buffer.data(), buffer.size(), from, plane.bytes);
    if (ZSTD_isError(bytes))
      corrupt(std::string("zstd cannot read a plane: ") + ZSTD_getErrorName(bytes));
    if (bytes != buffer.size())
      corrupt("a plane has " + std::to_string(bytes) + " bytes, expected " +
              std::to_string(buffer.size()));
    return buffer.data();
  }
};

BlockCodec::BlockCodec() : state_(std::make_unique<State>()) {}
BlockCodec::~BlockCodec() = default;

void BlockCodec::encode(std::span<const std::byte> raw, std::span<const std::byte> reference,
                        std::vector<std::byte>& out) {
  State& state = *state_;
  const size_t num_words = raw.size() / 2;
  state.resize(num_words);
  if (reference.empty())
    kernels::split_words(raw.data(), state.low.data(), state.high.data(), num_words);
  else
    kernels::split_difference(raw.data(), reference.data(), state.low.data(), state.high.data(),
                              num_words);
  out.resize(kBlockHeaderBytes);
  const uint32_t words[2] = {state.put(state.low, out), state.put(state.high, out)};
  std::memcpy(out.data(), words, sizeof words);
  if (raw.size() % 2 != 0) out.push_back(raw.back());
}

void BlockCodec::decode(std::span<const std::byte> block, std::span<const std::byte> reference,
                        std::span<std::byte> raw) {
  State& state = *state_;
  const size_t num_words = raw.size() / 2;
  if (block.size() < kBlockHeaderBytes ||
      block.size() - kBlockHeaderBytes != body_bytes(block, raw.size()))
    corrupt("a block has " + std::to_string(block.size()) +
            " bytes, which contradicts the sizes in its header");
  const Plane low_plane = plane_of(block.data(), num_words);
  const Plane high_plane = plane_of(block.data() + 4, num_words);
  const std::byte* body = block.data() + kBlockHeaderBytes;
  state.resize(num_words);
  const std::byte* low = state.get(low_plane, body, state.low);
  const std::byte* high = state.get(high_plane, body + low_plane.bytes, state.high);
  if (reference.empty())
    kernels::join_words(low, high, raw.data(), num_words);
  else
    kernels::join_difference(low, high, reference.data(), raw.data(), num_words);
  if (raw.size() % 2 != 0) raw.back() = block.back();
}

}  // namespace xffl::pack
