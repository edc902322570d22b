#include "shard_layout.h"

#include <bit>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "xffl/base/error.h"

namespace xffl::tokens {
namespace {

static_assert(std::endian::native == std::endian::little,
              "shards are little-endian; the host must be, too");

struct Header {
  char magic[8];
  uint32_t version;
  uint32_t token_bytes;
  uint64_t vocab_size;
  uint64_t sequence_length;
  uint64_t num_tokens;
  uint64_t num_sequences;
  uint64_t num_documents;
  uint32_t flags;
  uint32_t zero;
};
static_assert(sizeof(Header) == kHeaderBytes);

constexpr uint32_t kFlagPacked = 1;
constexpr uint32_t kFlagTargets = 2;

[[noreturn]] void corrupt(const std::filesystem::path& path, const std::string& problem) {
  throw Error(ErrorKind::kCorrupt, "token shard " + path.string() + ": " + problem);
}

void check_in_range(const std::filesystem::path& path, const char* name, uint64_t value,
                    uint64_t max) {
  if (value >= 1 && value <= max) return;
  corrupt(path, std::string(name) + " is " + std::to_string(value) + ", expected 1 to " +
                    std::to_string(max));
}

void check_fields(const Header& header, const std::filesystem::path& path) {
  if (header.version != kShardVersion && header.version != kTargetsVersion) {
    corrupt(path, "format version " + std::to_string(header.version) + ", this program reads " +
                      std::to_string(kShardVersion) + " and " + std::to_string(kTargetsVersion));
  }
  if (header.token_bytes != 2 && header.token_bytes != 4) {
    corrupt(path, "tokens of " + std::to_string(header.token_bytes) + " bytes, expected 2 or 4");
  }
  const uint32_t expected_targets = header.version == kTargetsVersion ? kFlagTargets : 0;
  if ((header.flags & ~kFlagPacked) != expected_targets || header.zero != 0) {
    corrupt(path, "flags are " + std::to_string(header.flags) + " and reserved bytes " +
                      std::to_string(header.zero) + ", which version " +
                      std::to_string(header.version) + " does not have");
  }
  check_in_range(path, "vocab_size", header.vocab_size, kMaxVocabSize);
  check_in_range(path, "sequence_length", header.sequence_length, kMaxSequenceLength);
  check_in_range(path, "num_sequences", header.num_sequences, header.num_tokens);
  check_in_range(path, "num_documents", header.num_documents, header.num_tokens);
  if (header.token_bytes == 2 && token_bytes_for(header.vocab_size) != 2) {
    corrupt(path, "2-byte tokens cannot hold a vocabulary of " + std::to_string(header.vocab_size));
  }
}

void check_counts(const ShardInfo& info, const std::filesystem::path& path) {
  uint64_t capacity = 0;
  const bool overflow = __builtin_mul_overflow(info.num_sequences, info.sequence_length, &capacity);
  if (info.packed && (overflow || capacity != info.num_tokens)) {
    corrupt(path, "packed, but " + std::to_string(info.num_sequences) + " sequences of " +
                      std::to_string(info.sequence_length) + " are not its " +
                      std::to_string(info.num_tokens) + " tokens");
  }
  if (!info.packed && !overflow && capacity < info.num_tokens) {
    corrupt(path, std::to_string(info.num_tokens) + " tokens do not fit in " +
                      std::to_string(info.num_sequences) + " sequences of at most " +
                      std::to_string(info.sequence_length));
  }
  if (!info.packed && info.num_documents != info.num_sequences) {
    corrupt(path, "unpacked, but " + std::to_string(info.num_documents) +
                      " documents are not its " + std::to_string(info.num_sequences) +
                      " sequences");
  }
}

}  // namespace

size_t token_bytes_for(uint64_t vocab_size) { return vocab_size <= 65536 ? 2 : 4; }

ShardLayout layout_of(const ShardInfo& info, size_t token_bytes,
                      const std::filesystem::path& path) {
  ShardLayout layout;
  layout.token_bytes = token_bytes;
  layout.num_offsets = info.packed ? info.num_documents : info.num_sequences + 1;
  // A limit of 2^56 exceeds any disk and keeps every sum below in range.
  constexpr uint64_t kMaxCount = uint64_t{1} << 56;
  if (info.num_tokens > kMaxCount || layout.num_offsets > kMaxCount) {
    corrupt(path, "the header claims " + std::to_string(info.num_tokens) + " tokens and " +
                      std::to_string(info.num_documents) + " documents");
  }
  const uint64_t tokens_end = kHeaderBytes + info.num_tokens * token_bytes;
  layout.offsets_begin = (tokens_end + 7) / 8 * 8;
  layout.targets_begin = layout.offsets_begin + layout.num_offsets * sizeof(uint64_t);
  layout.num_target_words = info.has_targets ? (info.num_tokens + 63) / 64 : 0;
  layout.file_bytes = layout.targets_begin + layout.num_target_words * sizeof(uint64_t);
  return layout;
}

std::array<std::byte, kHeaderBytes> encode_header(const ShardInfo& info, size_t token_bytes) {
  Header header{};
  std::memcpy(header.magic, kShardMagic.data(), kShardMagic.size());
  header.version = info.has_targets ? kTargetsVersion : kShardVersion;
  header.token_bytes = static_cast<uint32_t>(token_bytes);
  header.vocab_size = info.vocab_size;
  header.sequence_length = info.sequence_length;
  header.num_tokens = info.num_tokens;
  header.num_sequences = info.num_sequences;
  header.num_documents = info.num_documents;
  header.flags = (info.packed ? kFlagPacked : 0) | (info.has_targets ? kFlagTargets : 0);
  return std::bit_cast<std::array<std::byte, kHeaderBytes>>(header);
}

std::pair<ShardInfo, ShardLayout> decode_header(std::span<const std::byte> file,
                                                const std::filesystem::path& path) {
  if (file.size() < kHeaderBytes) {
    corrupt(path, std::to_string(file.size()) + " bytes, shorter than a header of " +
                      std::to_string(kHeaderBytes));
  }
  Header header;
  std::memcpy(&header, file.data(), sizeof header);
  if (std::string_view(header.magic, sizeof header.magic) != kShardMagic) {
    corrupt(path, "not a token shard: it does not begin with \"" + std::string(kShardMagic) + "\"");
  }
  check_fields(header, path);
  const ShardInfo info{header.vocab_size,
                       header.sequence_length,
                       header.num_tokens,
                       header.num_sequences,
                       header.num_documents,
                       (header.flags & kFlagPacked) != 0,
                       (header.flags & kFlagTargets) != 0};
  check_counts(info, path);
  const ShardLayout layout = layout_of(info, header.token_bytes, path);
  if (layout.file_bytes != file.size()) {
    corrupt(path, "has " + std::to_string(file.size()) + " bytes, its header says " +
                      std::to_string(layout.file_bytes) +
                      ": truncated or damaged, encode it again");
  }
  return {info, layout};
}

}  // namespace xffl::tokens
