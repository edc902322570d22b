// Token shards, *.tokens: the trainer's input.
//
// Layout, little-endian (docs/reference/token_shards.md):
//   64 bytes  header: magic "XFFLTOK1", u32 version (1, or 2: with targets), u32 token bytes (2 or
//             4), u64 vocab_size, u64 sequence_length, u64 num_tokens, u64 num_sequences, u64
//             num_documents, u32 flags (bit 0: packed, bit 1: with targets), u32 zero
//   tokens    num_tokens ids of u16 or u32, then zero bytes up to a multiple of 8
//   offsets   u64 each, in tokens. Packed: num_documents offsets, the start of each document (the
//             first is 0). Unpacked: num_sequences + 1 offsets, the start of each sequence and the
//             end of the last one
//   targets   version 2 only: one bit per token, in u64 from the lowest bit on; 1: the loss counts
//             the token. Zero bits up to a multiple of 64
// The header determines the file's exact size. A shard has at least one sequence.
//   packed:   every sequence has exactly sequence_length tokens; a document may span sequences
//   unpacked: each document is one sequence of 1 .. sequence_length tokens
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "xffl/base/file.h"

namespace xffl::tokens {

inline constexpr std::string_view kShardMagic = "XFFLTOK1";  // the first bytes of a shard

struct ShardInfo {
  uint64_t vocab_size = 0;
  uint64_t sequence_length = 0;  // the maximum length when unpacked
  uint64_t num_tokens = 0;
  uint64_t num_sequences = 0;
  uint64_t num_documents = 0;
  bool packed = true;
  bool has_targets = false;  // the loss counts only marked tokens; false: all tokens
};

inline constexpr size_t kShardHeaderBytes = 64;
/// The sequence length in the first bytes of a shard, unchecked; none for another file.
std::optional<uint64_t> sequence_length_in(std::span<const std::byte> header);

class TokenShardReader {
 public:
  /// Maps the file and checks sizes and offsets (monotonic, in range), but not every token. Throws
  /// kNotFound, kCorrupt.
  explicit TokenShardReader(const std::filesystem::path& path);

  const ShardInfo& info() const { return info_; }
  const std::filesystem::path& path() const { return file_.path(); }
  size_t length(uint64_t sequence_index) const;
  /// Copies sequence `sequence_index` to `out`, a span of at least length() elements. Throws
  /// kCorrupt for an id >= vocab_size.
  void read(uint64_t sequence_index, std::span<int32_t> out) const;
  /// The token offset of the start of each document (packed) or of each sequence (unpacked); the
  /// first offset is 0.
  std::vector<uint64_t> document_offsets() const;

  /// The targets of a sequence: out[i] is 1 when the loss counts the prediction of token i, else 0
  /// (label "ignore"); all 1 when the shard has no targets. A model never predicts the first token
  /// of a sequence, regardless of the token's target. `out` has at least length() elements.
  void read_targets(uint64_t sequence_index, std::span<uint8_t> out) const;
  /// The number of targets of a sequence without its first token, which a model never predicts. May
  /// be 0.
  uint64_t num_targets(uint64_t sequence_index) const;
  /// The positions in a sequence where documents begin, ascending. The first is always 0, also for
  /// a sequence that begins inside a document. Token t belongs to the document of the last start <=
  /// t. With document masking, attention stays within the token's document, and reset positions
  /// count from the document's start. Time: logarithmic in the number of documents.
  std::vector<uint32_t> document_starts(uint64_t sequence_index) const;

 private:
  uint64_t begin_of(uint64_t sequence_index) const;
  uint64_t target_word(uint64_t index) const;

  MappedFile file_;
  ShardInfo info_;
  size_t token_bytes_ = 2;
  const std::byte* tokens_ = nullptr;
  const std::byte* offsets_ = nullptr;  // packed: of documents; unpacked: of sequences
  const std::byte* targets_ = nullptr;  // null without targets
};

/// Writes one shard; only a temp file beside `path` exists until finish(). Tokens are uint16 when
/// vocab_size <= 65,536. Memory: a buffer, 8 bytes per document, and with targets one bit per
/// token. Throws kRejected for ids out of range and for empty or too long documents, and then
/// leaves the shard unchanged. Throws kIo for disk errors.
class TokenShardWriter {
 public:
  /// `has_targets`: documents mark the tokens that the loss counts (format version 2).
  TokenShardWriter(std::filesystem::path path, uint64_t vocab_size, uint64_t sequence_length,
                   bool packed, bool has_targets = false);
  ~TokenShardWriter();
  TokenShardWriter(TokenShardWriter&&) noexcept;

  /// Adds one document: 1 or more ids below vocab_size; unpacked, at most sequence_length ids.
  /// `is_target` has a 0 or 1 for each id; an empty `is_target` marks all tokens as targets.
  void add_document(std::span<const int32_t> ids, std::span<const uint8_t> is_target = {});
  /// Drops an incomplete last sequence of a packed shard, then syncs the file under its temporary
  /// name. No document may follow. Throws kRejected when the shard has no sequence or no target.
  void complete();
  /// Calls complete() unless the caller has done so, then renames the file. Returns the counts in
  /// the file.
  ShardInfo finish();

 private:
  struct State;
  std::unique_ptr<State> state_;     // until complete()
  std::unique_ptr<State> complete_;  // from then until finish()
};

}  // namespace xffl::tokens
