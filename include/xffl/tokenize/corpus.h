// Corpora to token shards and back.
//
// Documents are read, split into training and validation, encoded in parallel and written, chunk by
// chunk: memory is bounded by a chunk and the largest document, and the result depends on neither
// the number of threads nor the time. A document goes to validation by a seeded hash of its text,
// so that it, or a copy of it, is never in both.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "xffl/tokenize/documents.h"
#include "xffl/tokenize/prompt_template.h"
#include "xffl/tokenize/tokenizer.h"
#include "xffl/tokens/token_shard.h"

namespace xffl::tokenize {

struct Progress {
  uint64_t bytes_done = 0;
  uint64_t bytes_total = 0;
  uint64_t documents = 0;
  uint64_t tokens = 0;
};

/// Called after every chunk, from the calling thread; it may throw to stop, which leaves no output.
using ProgressCallback = std::function<void(const Progress&)>;

struct ValidationSplit {
  std::filesystem::path output;
  double fraction = 0.05;                 // of the documents, in expectation
  std::optional<uint64_t> num_documents;  // instead: as many, all distinct (reads the input twice)
  uint64_t seed = 0;
};

struct EncodeOptions {
  DocumentOptions documents;
  PromptTemplate prompt;     // with {prompt} exactly when the documents have a prompt field
  bool mask_prompt = false;  // the loss falls on {text} and what follows, not on what precedes it
  bool with_labels = false;  // for ids: each line says which of them the loss falls on
  bool bos = true;
  bool eos = true;
  uint64_t vocab_size = 0;  // for ids without a tokenizer
  uint64_t sequence_length = 2048;
  bool packed = true;
  int num_threads = 0;  // 0: as many as the machine has
  std::optional<ValidationSplit> validation;
};

struct EncodeResult {
  tokens::ShardInfo training;
  std::optional<tokens::ShardInfo> validation;
  uint64_t num_documents = 0;
  uint64_t num_tokens = 0;  // of all documents, also those dropped at a packed shard's end
  uint64_t num_cut = 0;     // unpacked: documents longer than a sequence, cut into pieces
  uint64_t num_idle = 0;    // unpacked and masked: pieces with nothing to predict, left out
};

/// Text or JSONL, by `tokenizer`, to shards. Unpacked, a document longer than sequence_length
/// becomes pieces of at most that many tokens. With `mask_prompt` the ids are the same, and a token
/// is a target when it has a byte of {text} or of what follows, as is EOS. Throws kRejected,
/// kCorrupt (with file:line), kUsage, kIo; then no output is written.
EncodeResult encode_corpus(const Tokenizer& tokenizer,
                           const std::vector<std::filesystem::path>& inputs,
                           const std::filesystem::path& output, const EncodeOptions& options,
                           const ProgressCallback& progress);

/// Lines of JSON arrays of ids, unchanged. Unpacked, each line is one sequence, and longer than
/// sequence_length is kCorrupt with file:line, as is an id out of range. `with_labels`: lines are
/// objects as HF's data sets have them, {"input_ids": [...], "labels": [...]}, where a label is the
/// id at its place, or -100: no loss.
EncodeResult encode_ids(const std::vector<std::filesystem::path>& inputs,
                        const std::filesystem::path& output, const EncodeOptions& options,
                        const ProgressCallback& progress);

/// Documents of a shard (or of a file of id lines, when it is not a shard) as text, blank lines
/// between them, the first `limit` (0: all). Returns how many.
uint64_t decode_corpus(const Tokenizer& tokenizer, const std::filesystem::path& input,
                       uint64_t limit, std::ostream& out);

}  // namespace xffl::tokenize
