// Token shards: *.tokens, what the trainer reads instead of text.
//
// Layout, little-endian (docs/token-shards.md):
//   64 bytes  header: magic "XFFLTOK1", u32 version (1), u32 token bytes (2 or 4), u64 vocab_size,
//             u64 sequence_length, u64 num_tokens, u64 num_sequences, u64 num_documents,
//             u32 flags (bit 0: packed), u32 zero
//   tokens    num_tokens ids of u16 or u32, then zero bytes up to a multiple of 8
//   offsets   u64 each, in tokens: when packed, where each document begins (num_documents of them,
//   the
//             first is 0); when not, where each sequence begins, and the end (num_sequences + 1)
// The file's size is exactly what the header says. A shard has at least one sequence.
//   packed:   every sequence has exactly sequence_length tokens; documents run across sequence
//   borders unpacked: each document is one sequence of 1 .. sequence_length tokens
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "xffl/base/file.h"

namespace xffl::tokens {

struct ShardInfo {
  uint64_t vocab_size = 0;
  uint64_t sequence_length = 0;  // the longest sequence allowed
  uint64_t num_tokens = 0;
  uint64_t num_sequences = 0;
  uint64_t num_documents = 0;
  bool packed = true;
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

 private:
  MappedFile file_;
  ShardInfo info_;
  size_t token_bytes_ = 2;
  const std::byte* tokens_ = nullptr;
  const std::byte* offsets_ = nullptr;  // of documents when packed, else of sequences
};

/// Writes one shard; nothing but a temp file beside `path` exists until finish(). uint16 tokens
/// when vocab_size <= 65,536. Memory: a buffer, and 8 bytes a document. Ids out of range, empty or
/// too long documents are kRejected and leave the shard as it was; disk trouble is kIo.
class TokenShardWriter {
 public:
  TokenShardWriter(std::filesystem::path path, uint64_t vocab_size, uint64_t sequence_length,
                   bool packed);
  ~TokenShardWriter();
  TokenShardWriter(TokenShardWriter&&) noexcept;

  /// Adds one document (1 or more ids below vocab_size). Unpacked: it must not be longer than
  /// sequence_length.
  void add_document(std::span<const int32_t> ids);
  /// Packed: an incomplete last sequence is dropped, and the info says what was kept. fsync,
  /// rename.
  ShardInfo finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace xffl::tokens
