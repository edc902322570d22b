// Encodes corpora as token shards, and decodes shards.
//
// The encoder reads documents chunk by chunk, splits a chunk into training and validation, encodes
// the documents in parallel and writes both shards. A chunk and the largest document bound the
// memory. The result does not depend on the number of threads. A seeded hash of the text assigns a
// document to validation: copies of a document are never in both shards.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "xffl/tokenize/documents.h"
#include "xffl/tokenize/tokenizer.h"
#include "xffl/tokens/token_shard.h"

namespace xffl::tokenize {

struct Progress {
  uint64_t bytes_done = 0;
  uint64_t bytes_total = 0;  // twice the inputs' where a number of validation documents is chosen
  uint64_t documents = 0;
  uint64_t tokens = 0;
};

/// The encoder calls this callback after every chunk, in the caller's thread, also during the
/// choice of validation documents, when no document is encoded yet. The callback may throw to stop
/// the encoder, which then writes no output.
using ProgressCallback = std::function<void(const Progress&)>;

struct ValidationSplit {
  std::filesystem::path output;
  double fraction = 0.05;                 // the expected share of the documents
  std::optional<uint64_t> num_documents;  // instead: distinct documents; reads the input twice
  uint64_t seed = 0;
};

struct EncodeOptions {
  DocumentOptions documents;
  PromptTemplate prompt;      // has {prompt} exactly when the documents have a prompt field
  std::string chat_template;  // for InputFormat::kChat: a name of chat_template_names()
  bool mask_prompt = false;   // the loss omits the part before {text}
  bool with_labels = false;   // for ids: each line has the labels of its ids
  bool bos = true;
  bool eos = true;
  uint64_t vocab_size = 0;  // for ids without a tokenizer
  uint64_t sequence_length = 2048;
  bool packed = true;
  bool truncate = false;          // unpacked: a longer document is cut, to one sequence
  std::optional<int32_t> pad_id;  // with truncate: fills shorter sequences, without loss
  int num_threads = 0;            // 0: one per available CPU
  std::optional<ValidationSplit> validation;
};

struct EncodeResult {
  tokens::ShardInfo training;
  std::optional<tokens::ShardInfo> validation;
  uint64_t num_documents = 0;
  uint64_t num_tokens = 0;  // of all documents, with the tokens dropped at a packed shard's end
  uint64_t num_cut = 0;     // unpacked: documents longer than a sequence, cut into pieces or off
  uint64_t num_idle = 0;    // unpacked and masked: dropped pieces without a target
};

/// Encodes text, or conversations by `chat_template` (without `bos` and `eos`, which the template
/// has itself; the targets are the assistant's turns). Unpacked, a document longer than
/// sequence_length becomes pieces of at most sequence_length tokens; with `truncate`, its first
/// tokens and EOS become one sequence, as with truncation=True in HF's tokenizers. `mask_prompt`
/// changes no id; the targets are EOS and each token with a byte of {text} or of the template after
/// {text}. Throws kRejected, kCorrupt (with file:line), kUsage, kIo; an error leaves no output.
EncodeResult encode_corpus(const Tokenizer& tokenizer,
                           const std::vector<std::filesystem::path>& inputs,
                           const std::filesystem::path& output, const EncodeOptions& options,
                           const ProgressCallback& progress);

/// Writes ids unchanged: lines of JSON arrays, or a file of raw ids. Unpacked, each line or row is
/// one sequence; throws kCorrupt with its place if it is longer than sequence_length (unless
/// `truncate`) or an id is out of range.
/// Lines may be objects as in HF's data sets, {"input_ids": [...], "labels": [...]}; a label is the
/// id at its place, or -100 (no loss). All documents have labels or none; `with_labels` requires
/// them.
EncodeResult encode_ids(const std::vector<std::filesystem::path>& inputs,
                        const std::filesystem::path& output, const EncodeOptions& options,
                        const ProgressCallback& progress);

/// Writes the first `limit` (0: all) documents of a shard, or of a file of id lines, as text with
/// blank lines between documents. Returns the number of documents.
uint64_t decode_corpus(const Tokenizer& tokenizer, const std::filesystem::path& input,
                       uint64_t limit, std::ostream& out);

}  // namespace xffl::tokenize
