// Token shards: *.tokens, what the trainer reads instead of text.
//
// Layout, little-endian (docs/reference/token_shards.md):
//   64 bytes  header: magic "XFFLTOK1", u32 version (1, or 2: with targets), u32 token bytes (2 or
//             4), u64 vocab_size, u64 sequence_length, u64 num_tokens, u64 num_sequences, u64
//             num_documents, u32 flags (bit 0: packed, bit 1: with targets), u32 zero
//   tokens    num_tokens ids of u16 or u32, then zero bytes up to a multiple of 8
//   offsets   u64 each, in tokens: when packed, where each document begins (num_documents of them,
//             the first is 0); when not, where each sequence begins, and the end (num_sequences +
//             1)
//   targets   version 2 only: a bit a token, in u64 from the lowest bit on; 1: the loss falls on
//   it.
//             Zero bits up to a multiple of 64
// The file's size is exactly what the header says. A shard has at least one sequence.
//   packed:   every sequence has exactly sequence_length tokens; documents run across the borders
//   of
//             sequences
//   unpacked: each document is one sequence of 1 .. sequence_length tokens
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "xffl/base/file.h"

namespace xffl::tokens {

inline constexpr std::string_view kShardMagic = "XFFLTOK1";  // what every shard begins with

struct ShardInfo {
  uint64_t vocab_size = 0;
  uint64_t sequence_length = 0;  // the longest sequence allowed
  uint64_t num_tokens = 0;
  uint64_t num_sequences = 0;
  uint64_t num_documents = 0;
  bool packed = true;
  bool has_targets = false;  // the loss falls on chosen tokens; else on all
};

class TokenShardReader {
 public:
  /// Maps and checks sizes, offsets (monotonic, in range) but not every token. Throws kNotFound,
  /// kCorrupt.
  explicit TokenShardReader(const std::filesystem::path& path);

  const ShardInfo& info() const { return info_; }
  const std::filesystem::path& path() const { return file_.path(); }
  size_t length(uint64_t sequence_index) const;
  /// Copies sequence `sequence_index` to `out`, which has at least length() elements. Throws
  /// kCorrupt for an id >= vocab_size.
  void read(uint64_t sequence_index, std::span<int32_t> out) const;
  /// Token offsets at which documents begin (the first is 0); for a packed shard, of its tokens;
  /// else the sequences' begins.
  std::vector<uint64_t> document_offsets() const;

  /// Which tokens of a sequence the loss falls on: out[i] is 1 where predicting token i counts,
  /// else 0 (its label is then "ignore"); all 1 when the shard has no targets. The first token of a
  /// sequence is never predicted, whatever is said of it. `out` has at least length() elements.
  void read_targets(uint64_t sequence_index, std::span<uint8_t> out) const;
  /// Tokens of a sequence that are predicted and count: targets other than its first token. May be
  /// 0.
  uint64_t num_targets(uint64_t sequence_index) const;
  /// Positions in a sequence at which documents begin, rising. The first is always 0, also where a
  /// sequence begins within a document: what came before is not in it. Token t belongs to the
  /// document of the last start <= t: attention stays within it when documents are masked, and
  /// positions count from it when they are reset. Time: logarithmic in the number of documents.
  std::vector<uint32_t> document_starts(uint64_t sequence_index) const;

 private:
  uint64_t begin_of(uint64_t sequence_index) const;
  uint64_t target_word(uint64_t index) const;

  MappedFile file_;
  ShardInfo info_;
  size_t token_bytes_ = 2;
  const std::byte* tokens_ = nullptr;
  const std::byte* offsets_ = nullptr;  // of documents when packed, else of sequences
  const std::byte* targets_ = nullptr;  // where there are any
};

/// Writes one shard; nothing but a temp file beside `path` exists until finish(). uint16 tokens
/// when vocab_size <= 65,536. Memory: a buffer, 8 bytes a document, and with targets a bit a token.
/// Ids out of range, empty or too long documents are kRejected and leave the shard as it was; disk
/// trouble is kIo.
class TokenShardWriter {
 public:
  /// `has_targets`: documents say which of their tokens the loss falls on (format version 2).
  TokenShardWriter(std::filesystem::path path, uint64_t vocab_size, uint64_t sequence_length,
                   bool packed, bool has_targets = false);
  ~TokenShardWriter();
  TokenShardWriter(TokenShardWriter&&) noexcept;

  /// Adds one document (1 or more ids below vocab_size). Unpacked: it must not be longer than
  /// sequence_length. `is_target` has a 0 or 1 for each id; empty: the loss falls on all of them.
  void add_document(std::span<const int32_t> ids, std::span<const uint8_t> is_target = {});
  /// Packed: an incomplete last sequence is dropped, and the info says what was kept. fsync,
  /// rename. Throws kRejected when no sequence is left, or no target among the tokens.
  ShardInfo finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace xffl::tokens
