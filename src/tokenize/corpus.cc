#include "xffl/tokenize/corpus.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <future>
#include <ostream>
#include <queue>
#include <span>
#include <system_error>
#include <unordered_set>

#include "selection.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/base/resources.h"
#include "xffl/base/threads.h"
#include "xffl/tokenize/chat.h"

namespace xffl::tokenize {
namespace {

namespace fs = std::filesystem;

// About a second of work: the interval of progress reports and of checks for Ctrl-C.
constexpr uint64_t kChunkBytesPerThread = uint64_t{1} << 20;
constexpr size_t kChunkDocuments = 16384;

struct EncodedDocument {
  std::vector<int32_t> ids;
  std::vector<uint8_t> is_target;  // 0 or 1 for each id; empty: all ids are targets
};

// Cuts the middle of a document or fills its end, as truncation and padding to a maximum length do
// in HF's tokenizers: a last EOS survives the cut, and padding has no loss.
void fit(EncodedDocument& document, const EncodeOptions& options) {
  const auto resize = [&](size_t size, int32_t id, uint8_t is_target) {
    document.ids.resize(size, id);
    if (!document.is_target.empty()) document.is_target.resize(size, is_target);
  };
  const size_t length = options.sequence_length;
  if (document.ids.size() > length) {
    const int32_t eos = document.ids.back();
    resize(length, 0, 0);
    if (options.eos && length > 0) {
      document.ids.back() = eos;
      // A model should not learn to stop after a prompt whose answer was cut off.
      if (!document.is_target.empty()) {
        document.is_target.back() = 0;
        document.is_target.back() = std::ranges::count(document.is_target, 1) > 0 ? 1 : 0;
      }
    }
  }
  if (!options.pad_id) return;
  if (document.is_target.empty()) document.is_target.assign(document.ids.size(), 1);
  resize(length, *options.pad_id, 0);
}

// Several threads call the encoder.
using DocumentEncoder = std::function<EncodedDocument(const Document&)>;

// Writes one shard; cuts unpacked documents into sequences. `options` outlives the Output.
class Output {
 public:
  Output(const fs::path& path, const EncodeOptions& options)
      : path_(path),
        options_(options),
        length_(options.sequence_length),
        writer_(path, options.vocab_size, length_, options.packed,
                options.mask_prompt || options.with_labels || options.pad_id ||
                    options.documents.format == InputFormat::kChat) {}

  void add(EncodedDocument&& document, EncodeResult& result) {
    ++result.num_documents;
    if (!options_.packed && document.ids.size() > length_) ++result.num_cut;
    if (options_.truncate) fit(document, options_);
    const std::span<const int32_t> ids = document.ids;
    const std::span<const uint8_t> targets = document.is_target;
    if (options_.packed) {
      add_piece(ids, targets, result);
      return;
    }
    for (size_t at = 0; at < ids.size(); at += length_) {
      const size_t count = std::min<size_t>(length_, ids.size() - at);
      const auto of_piece = targets.empty() ? targets : targets.subspan(at, count);
      // A model does not predict the first token of a sequence.
      if (!targets.empty() && std::count(of_piece.begin() + 1, of_piece.end(), 1) == 0) {
        ++result.num_idle;
      } else {
        add_piece(ids.subspan(at, count), of_piece, result);
      }
    }
  }

  void check_not_empty(const char* role) const {
    if (num_tokens_ >= (options_.packed ? length_ : 1)) return;
    throw Error(
        ErrorKind::kRejected,
        "the " + std::string(role) + " shard " + path_.string() + " would have " +
            std::to_string(num_tokens_) + " tokens, less than one sequence of " +
            std::to_string(length_) +
            "; provide more text, a smaller --sequence-length (data.sequence_length of xffl.yaml), "
            "--no-pack (data.pack: false) or another split (data.validation_fraction)");
  }

  // The pipeline completes all outputs before it finishes any output: all outputs appear, or none.
  void complete() { writer_.complete(); }
  tokens::ShardInfo finish() { return writer_.finish(); }

 private:
  void add_piece(std::span<const int32_t> ids, std::span<const uint8_t> targets,
                 EncodeResult& result) {
    writer_.add_document(ids, targets);
    num_tokens_ += ids.size();
    result.num_tokens += ids.size();
  }

  fs::path path_;
  const EncodeOptions& options_;
  uint64_t length_;
  tokens::TokenShardWriter writer_;
  uint64_t num_tokens_ = 0;
};

// Keeps the `count` smallest distinct hashes.
class SmallestHashes {
 public:
  explicit SmallestHashes(uint64_t count) : count_(count) {}

  void add(uint64_t hash) {
    if (kept_.contains(hash)) return;
    if (kept_.size() == count_) {
      overflowed_ = true;
      if (count_ == 0 || hash > largest_first_.top()) return;
      kept_.erase(largest_first_.top());
      largest_first_.pop();
    }
    kept_.insert(hash);
    largest_first_.push(hash);
  }
  /// True when the caller has added more than `count` distinct hashes.
  bool overflowed() const { return overflowed_; }
  uint64_t size() const { return largest_first_.size(); }
  /// Exactly the kept hashes are below this bound; size() >= 1.
  uint64_t bound() const { return largest_first_.top() + 1; }

 private:
  uint64_t count_;
  bool overflowed_ = false;
  std::priority_queue<uint64_t> largest_first_;
  std::unordered_set<uint64_t> kept_;
};

// The hash of a document. The documents with a hash below a bound are for validation. Ids have one
// form in all formats: little-endian int32, then 0 or 1 for each id if some have no loss.
uint64_t hash_of(uint64_t seed, const Document& document, const EncodedDocument& encoded,
                 const EncodeOptions& options) {
  if (options.documents.holds_ids) {
    const auto bytes = [](const auto& values) {
      return std::string(reinterpret_cast<const char*>(values.data()),
                         values.size() * sizeof values[0]);
    };
    std::string form = bytes(encoded.ids);
    if (std::ranges::count(encoded.is_target, 0) > 0) form += bytes(encoded.is_target);
    return selection_hash(seed, form);
  }
  if (options.documents.format == InputFormat::kChat) {
    std::string form;
    for (const ChatMessage& each : document.messages)
      form += each.role + '\0' + each.content + '\0';
    return selection_hash(seed, form);
  }
  if (options.documents.prompt_field.empty()) return selection_hash(seed, document.text);
  return selection_hash(seed, document.prompt + '\0' + document.text);
}

uint64_t validation_bound(const std::vector<fs::path>& inputs, const EncodeOptions& options,
                          const DocumentEncoder& encode,
                          const std::function<void(uint64_t bytes_read)>& progress) {
  const ValidationSplit& split = *options.validation;
  if (!split.num_documents) {
    if (!(split.fraction > 0 && split.fraction < 1)) {
      throw Error(ErrorKind::kUsage, "the validation fraction must be above 0 and below 1");
    }
    return selection_bound(split.fraction);
  }
  if (*split.num_documents == 0)
    throw Error(ErrorKind::kUsage, "the number of validation documents is 0, expected 1 or more");
  SmallestHashes smallest(*split.num_documents);
  DocumentReader documents(inputs, options.documents);
  uint64_t reported = 0;
  for (Document document; documents.next(document);) {
    const EncodedDocument encoded =
        options.documents.holds_ids ? encode(document) : EncodedDocument{};
    smallest.add(hash_of(split.seed, document, encoded, options));
    if (documents.bytes_read() - reported < kChunkBytesPerThread) continue;
    reported = documents.bytes_read();
    progress(reported);
  }
  if (!smallest.overflowed()) {
    throw Error(ErrorKind::kRejected, "the input has " + std::to_string(smallest.size()) +
                                          " different documents, and " +
                                          std::to_string(*split.num_documents) +
                                          " are for validation: none is left to train on");
  }
  return smallest.bound();
}

bool same_file(const fs::path& a, const fs::path& b) {
  std::error_code ignored;
  return fs::weakly_canonical(a, ignored) == fs::weakly_canonical(b, ignored);
}

void check_outputs(const std::vector<fs::path>& inputs, const fs::path& output,
                   const EncodeOptions& options) {
  std::vector<fs::path> outputs{output};
  if (options.validation) outputs.push_back(options.validation->output);
  if (outputs.size() == 2 && same_file(outputs[0], outputs[1])) {
    throw Error(ErrorKind::kUsage,
                "training output and validation output are the same file, " + output.string());
  }
  for (const fs::path& path : outputs) {
    if (path.empty()) throw Error(ErrorKind::kUsage, "an output has an empty name");
    for (const fs::path& input : inputs) {
      if (same_file(path, input)) {
        throw Error(ErrorKind::kUsage, "output " + path.string() + " is one of the inputs");
      }
    }
    if (path.has_parent_path()) make_dirs(path.parent_path());
  }
}

void check_truncation(const EncodeOptions& options) {
  if (options.truncate && options.packed)
    throw Error(ErrorKind::kUsage, "--truncate makes a sequence of each document: use --no-pack");
  if (!options.pad_id) return;
  if (!options.truncate) throw Error(ErrorKind::kUsage, "--pad-id needs --truncate");
  if (*options.pad_id < 0 || static_cast<uint64_t>(*options.pad_id) >= options.vocab_size)
    throw Error(ErrorKind::kUsage, "--pad-id is " + std::to_string(*options.pad_id) +
                                       ", expected an id 0 to " +
                                       std::to_string(options.vocab_size - 1));
}

int thread_count(int asked) {
  if (asked < 0) throw Error(ErrorKind::kUsage, "the number of threads must not be negative");
  return asked > 0 ? asked : available_cpus();
}

struct Chunk {
  std::vector<Document> documents;
  uint64_t bytes_read = 0;  // of all inputs, up to the chunk's end
};

Chunk read_chunk(DocumentReader& documents, uint64_t max_bytes) {
  Chunk chunk;
  uint64_t num_bytes = 0;
  for (Document document; num_bytes < max_bytes && chunk.documents.size() < kChunkDocuments;) {
    if (!documents.next(document)) break;
    num_bytes += document.text.size() + document.prompt.size() +
                 document.ids.size() * sizeof document.ids[0];
    for (const ChatMessage& each : document.messages) num_bytes += each.content.size();
    chunk.documents.push_back(std::move(document));
  }
  chunk.bytes_read = documents.bytes_read();
  return chunk;
}

struct Assigned {
  EncodedDocument document;
  bool for_validation = false;  // the document's hash is below the bound
};

std::vector<Assigned> encode_chunk(const std::vector<Document>& chunk, int num_threads,
                                   uint64_t bound, const EncodeOptions& options,
                                   const DocumentEncoder& encode) {
  std::vector<Assigned> assigned(chunk.size());
  parallel_for(chunk.size(), static_cast<size_t>(num_threads), [&](size_t i) {
    assigned[i].document = encode(chunk[i]);
    assigned[i].for_validation = bound > 0 && hash_of(options.validation->seed, chunk[i],
                                                      assigned[i].document, options) < bound;
  });
  return assigned;
}

// Encodes documents in parallel and writes the shards in the documents' order. The caller sets
// `options.vocab_size`.
EncodeResult run_pipeline(const std::vector<fs::path>& inputs, const fs::path& output,
                          const EncodeOptions& options, const DocumentEncoder& encode,
                          const ProgressCallback& progress) {
  const int num_threads = thread_count(options.num_threads);
  check_truncation(options);
  DocumentReader documents(inputs, options.documents);
  check_outputs(data_files(inputs), output, options);
  // A number of validation documents costs a pass of its own over the inputs.
  const uint64_t choice_bytes =
      options.validation && options.validation->num_documents ? documents.total_bytes() : 0;
  const uint64_t total_bytes = choice_bytes + documents.total_bytes();
  const uint64_t bound = options.validation
                             ? validation_bound(inputs, options, encode,
                                                [&](uint64_t bytes_read) {
                                                  progress({bytes_read, total_bytes, 0, 0});
                                                })
                             : 0;
  Output training(output, options);
  std::optional<Output> validation;
  if (options.validation) validation.emplace(options.validation->output, options);

  // With several threads, a thread reads the next chunk during the encoding of the current chunk.
  const auto read_ahead = [&] {
    const auto policy = num_threads > 1 ? std::launch::async : std::launch::deferred;
    return std::async(policy, [&] {
      return read_chunk(documents, kChunkBytesPerThread * static_cast<uint64_t>(num_threads));
    });
  };
  EncodeResult result;
  for (std::future<Chunk> next = read_ahead();;) {
    const Chunk chunk = next.get();
    if (chunk.documents.empty()) break;
    next = read_ahead();
    for (Assigned& each : encode_chunk(chunk.documents, num_threads, bound, options, encode)) {
      if (each.document.ids.empty()) continue;
      (each.for_validation ? *validation : training).add(std::move(each.document), result);
    }
    progress(
        {choice_bytes + chunk.bytes_read, total_bytes, result.num_documents, result.num_tokens});
  }
  training.check_not_empty("training");
  if (validation) validation->check_not_empty("validation");
  training.complete();
  if (validation) validation->complete();
  result.training = training.finish();
  if (validation) result.validation = validation->finish();
  return result;
}

constexpr int kHfIgnoredLabel = -100;  // ignore_index of torch's cross-entropy, used by HF

void check_options(const Tokenizer& tokenizer, const EncodeOptions& options) {
  const auto fail = [](const std::string& problem) { throw Error(ErrorKind::kUsage, problem); };
  if (options.bos && tokenizer.bos_id() < 0) {
    fail("the tokenizer has no BOS token before a text: use --no-bos");
  }
  if (options.eos && tokenizer.eos_id() < 0) {
    fail(
        "the tokenizer has no EOS token (for a tokenizer.json, the tokenizer_config.json beside it "
        "names the token): use --no-eos");
  }
  if (options.prompt.has_prompt() && options.documents.prompt_field.empty()) {
    fail("the template has {prompt}: name the field that holds it with --prompt-field");
  }
  if (!options.prompt.has_prompt() && !options.documents.prompt_field.empty()) {
    fail("--prompt-field is set, but the template has no {prompt}");
  }
  if (options.with_labels) fail("--labels needs --format ids");
  if (!options.chat_template.empty()) fail("--chat-template needs --format chat");
  if (options.mask_prompt && options.prompt.begins_with_text()) {
    fail(
        "--mask-prompt has nothing to mask: use a --template with a prompt before {text}, or "
        "--prompt-field");
  }
}

EncodedDocument encode_document(const Tokenizer& tokenizer, const Document& document,
                                const EncodeOptions& options) {
  const Prompted prompted = options.prompt.apply(document.prompt, document.text);
  EncodedDocument result;
  if (!options.mask_prompt) {
    result.ids = tokenizer.encode(prompted.text);
    if (options.bos) result.ids.insert(result.ids.begin(), tokenizer.bos_id());
    if (options.eos) result.ids.push_back(tokenizer.eos_id());
    return result;
  }
  const auto add = [&](int32_t id, bool is_target) {
    result.ids.push_back(id);
    result.is_target.push_back(is_target ? 1 : 0);
  };
  if (options.bos) add(tokenizer.bos_id(), false);
  for (const TokenSpan& token : tokenizer.encode_spans(prompted.text)) {
    add(token.id, token.end > prompted.text_begin || token.begin >= prompted.text_begin);
  }
  if (options.eos) add(tokenizer.eos_id(), true);
  return result;
}

EncodedDocument encode_chat(const Tokenizer& tokenizer, const ChatTemplate& chat,
                            const Document& document) {
  const RenderedChat rendered = chat.render(document.messages);
  EncodedDocument result;
  auto loss = rendered.loss.begin();
  for (const TokenSpan& token : tokenizer.encode_with_controls(rendered.text, rendered.plain)) {
    while (loss != rendered.loss.end() && loss->end <= token.begin) ++loss;
    const bool is_target = loss != rendered.loss.end() && token.begin < loss->end &&
                           (token.end > loss->begin || token.begin >= loss->begin);
    result.ids.push_back(token.id);
    result.is_target.push_back(is_target ? 1 : 0);
  }
  return result;
}

void check_chat_options(const EncodeOptions& options) {
  const auto fail = [](const std::string& problem) { throw Error(ErrorKind::kUsage, problem); };
  if (options.chat_template.empty())
    fail("--format chat needs --chat-template, the name of the model's template");
  if (options.mask_prompt || options.with_labels || !options.documents.prompt_field.empty())
    fail(
        "--format chat excludes --mask-prompt, --labels and --prompt-field: the loss counts the "
        "assistant's turns alone");
}

Json parse_line(const Document& line) {
  return parse_json(line.text, line.where(), {.max_bytes = kMaxDocumentBytes, .max_depth = 2});
}

std::vector<int32_t> ids_of(const Json& json, const Document& line, uint64_t vocab_size) {
  if (!json.is_array() || json.empty()) {
    throw Error(ErrorKind::kCorrupt,
                line.where() + ": expected a JSON array of one or more token ids");
  }
  std::vector<int32_t> ids;
  ids.reserve(json.size());
  for (const Json& value : json) {
    // Neither a negative number nor 1.0 is an unsigned number.
    if (!value.is_number_unsigned() || value.get<uint64_t>() >= vocab_size) {
      throw Error(ErrorKind::kCorrupt, line.where() + ": element " + std::to_string(ids.size()) +
                                           " is " + value.dump().substr(0, 40) +
                                           ", expected a token id 0 to " +
                                           std::to_string(vocab_size - 1));
    }
    ids.push_back(static_cast<int32_t>(value.get<uint64_t>()));
  }
  return ids;
}

// {"input_ids": [...], "labels": [...]}, and an attention_mask that masks nothing.
EncodedDocument parse_labelled(const Document& line, uint64_t vocab_size) {
  const Json json = parse_line(line);
  JsonObject row(json, line.where());
  EncodedDocument result{ids_of(row.at("input_ids"), line, vocab_size), {}};
  const Json& labels = row.at("labels");
  if (!labels.is_array() || labels.size() != result.ids.size()) {
    row.fail("labels", "should be a list as long as input_ids");
  }
  for (const Json& label : labels) {
    const int32_t id = result.ids[result.is_target.size()];
    if (label != id && label != kHfIgnoredLabel) {
      row.fail("labels", "has " + label.dump().substr(0, 40) + " where the id is " +
                             std::to_string(id) + ", expected that id or -100");
    }
    result.is_target.push_back(label == id ? 1 : 0);
  }
  if (row.has("attention_mask")) {
    const Json& mask = row.at("attention_mask");
    const bool all =
        mask.is_array() && mask.size() == labels.size() &&
        std::all_of(mask.begin(), mask.end(), [](const Json& each) { return each == 1; });
    if (!all) row.fail("attention_mask", "masks tokens: remove the padding");
  }
  row.reject_unknown_keys();
  return result;
}

// The ids of a line, for example "[1, 20, 300]", each below `vocab_size`.
std::vector<int32_t> parse_ids(const Document& line, uint64_t vocab_size) {
  return ids_of(parse_line(line), line, vocab_size);
}

// The ids of a document that a format other than kIds has read.
std::vector<int32_t> checked_ids(const Document& document, uint64_t vocab_size) {
  for (size_t i = 0; i < document.ids.size(); ++i) {
    if (static_cast<uint64_t>(document.ids[i]) < vocab_size) continue;
    throw Error(ErrorKind::kCorrupt, document.where() + ": element " + std::to_string(i) + " is " +
                                         std::to_string(document.ids[i]) +
                                         ", expected a token id 0 to " +
                                         std::to_string(vocab_size - 1));
  }
  return document.ids;
}

EncodedDocument read_ids(const Document& document, const EncodeOptions& options) {
  if (document.text.empty()) {
    if (document.is_target.empty() == options.with_labels)
      throw Error(ErrorKind::kCorrupt, document.where() + ": labels are " +
                                           (options.with_labels ? "absent" : "present") +
                                           ", unlike in the first document");
    return {checked_ids(document, options.vocab_size), document.is_target};
  }
  if (options.with_labels) return parse_labelled(document, options.vocab_size);
  return {parse_ids(document, options.vocab_size), {}};
}

// A table says by its columns whether it has labels, and lines by their first one.
bool has_labels(const std::vector<fs::path>& inputs, const DocumentOptions& options) {
  DocumentReader documents(inputs, options);
  Document first;
  return documents.next(first) && (!first.is_target.empty() || first.text.starts_with('{'));
}

bool is_shard(const fs::path& path) {
  std::string begin(tokens::kShardMagic.size(), '\0');
  std::ifstream(path, std::ios::binary)
      .read(begin.data(), static_cast<std::streamsize>(begin.size()));
  return begin == tokens::kShardMagic;
}

// Writes documents with a blank line between two documents.
class TextOutput {
 public:
  TextOutput(const Tokenizer& tokenizer, uint64_t limit, std::ostream& out)
      : tokenizer_(tokenizer), limit_(limit), out_(out) {}

  bool full() const { return limit_ > 0 && num_documents_ == limit_; }
  uint64_t num_documents() const { return num_documents_; }

  void add(std::span<const int32_t> ids) {
    out_ << (num_documents_ > 0 ? "\n" : "") << tokenizer_.decode(ids) << '\n';
    if (!out_) throw Error(ErrorKind::kIo, "cannot write the text: is the disk full?");
    ++num_documents_;
  }

 private:
  const Tokenizer& tokenizer_;
  uint64_t limit_;
  std::ostream& out_;
  uint64_t num_documents_ = 0;
};

void decode_shard(const fs::path& input, TextOutput& text) {
  const tokens::TokenShardReader reader(input);
  const std::vector<uint64_t> begins = reader.document_offsets();
  std::vector<int32_t> document;
  std::vector<int32_t> sequence(reader.info().sequence_length);
  uint64_t position = 0;
  size_t next_begin = 1;
  for (uint64_t s = 0; s < reader.info().num_sequences && !text.full(); ++s) {
    const size_t length = reader.length(s);
    reader.read(s, sequence);
    for (size_t i = 0; i < length && !text.full(); ++i, ++position) {
      if (next_begin < begins.size() && position == begins[next_begin]) {
        text.add(document);
        document.clear();
        ++next_begin;
      }
      document.push_back(sequence[i]);
    }
  }
  if (!text.full()) text.add(document);
}

void decode_ids(const Tokenizer& tokenizer, const fs::path& input, TextOutput& text) {
  DocumentReader lines({input}, {.format = InputFormat::kIds});
  for (Document line; !text.full() && lines.next(line);) {
    text.add(parse_ids(line, tokenizer.vocab_size()));
  }
}

}  // namespace

EncodeResult encode_corpus(const Tokenizer& tokenizer,
                           const std::vector<std::filesystem::path>& inputs,
                           const std::filesystem::path& output, const EncodeOptions& options,
                           const ProgressCallback& progress) {
  EncodeOptions own = options;
  own.vocab_size = tokenizer.vocab_size();
  if (options.documents.format == InputFormat::kChat) {
    check_chat_options(options);
    own.bos = own.eos = false;  // the template has its own
    const ChatTemplate chat(options.chat_template, tokenizer);
    const auto encode = [&](const Document& document) {
      return with_context(document.where(), [&] { return encode_chat(tokenizer, chat, document); });
    };
    return run_pipeline(inputs, output, own, encode, progress);
  }
  check_options(tokenizer, options);
  const auto encode = [&](const Document& document) {
    return with_context(document.where(),
                        [&] { return encode_document(tokenizer, document, options); });
  };
  return run_pipeline(inputs, output, own, encode, progress);
}

EncodeResult encode_ids(const std::vector<std::filesystem::path>& inputs,
                        const std::filesystem::path& output, const EncodeOptions& options,
                        const ProgressCallback& progress) {
  if (options.vocab_size < 1 || options.vocab_size > INT32_MAX) {
    throw Error(ErrorKind::kUsage, "ids need --vocab-size, the size of their vocabulary");
  }
  if (options.mask_prompt) throw Error(ErrorKind::kUsage, "--mask-prompt needs text, not ids");
  if (options.with_labels && options.documents.format == InputFormat::kBin)
    throw Error(ErrorKind::kUsage,
                "--labels needs lines or tables with labels: --format bin has none");
  EncodeOptions own = options;
  own.documents.holds_ids = true;
  own.documents.needs_labels = own.with_labels;
  if (!own.with_labels) own.with_labels = has_labels(inputs, own.documents);
  own.bos = own.eos = false;
  const auto encode = [&](const Document& line) {
    EncodedDocument document = read_ids(line, own);
    if (!own.packed && !own.truncate && document.ids.size() > own.sequence_length) {
      throw Error(ErrorKind::kCorrupt, line.where() + ": " + std::to_string(document.ids.size()) +
                                           " ids, a sequence has at most " +
                                           std::to_string(own.sequence_length) +
                                           ": raise --sequence-length (data.sequence_length of "
                                           "xffl.yaml), leave out --no-pack (data.pack: true) or "
                                           "cut longer ones with --truncate");
    }
    return document;
  };
  return run_pipeline(inputs, output, own, encode, progress);
}

uint64_t decode_corpus(const Tokenizer& tokenizer, const fs::path& input, uint64_t limit,
                       std::ostream& out) {
  TextOutput text(tokenizer, limit, out);
  is_shard(input) ? decode_shard(input, text) : decode_ids(tokenizer, input, text);
  return text.num_documents();
}

}  // namespace xffl::tokenize
