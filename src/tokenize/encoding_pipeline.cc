#include "encoding_pipeline.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <future>
#include <system_error>
#include <thread>

#include "selection.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"

namespace xffl::tokenize {
namespace {

namespace fs = std::filesystem;

// Enough to keep a thread busy for about a second, so that progress and Ctrl-C come soon.
constexpr uint64_t kChunkBytesPerThread = uint64_t{1} << 20;
constexpr size_t kChunkDocuments = 16384;

// Calls body(0) .. body(count - 1) on some threads; of several failures the one of the lowest index
// is thrown, so that the same input gives the same error.
void parallel_for(size_t count, int num_threads, const std::function<void(size_t)>& body) {
  std::atomic<size_t> next{0};
  std::vector<std::exception_ptr> failures(count);
  const auto work = [&] {
    for (size_t i = next++; i < count; i = next++) {
      try {
        body(i);
      } catch (...) {
        failures[i] = std::current_exception();
      }
    }
  };
  {
    std::vector<std::jthread> helpers;
    const size_t wanted = std::min(static_cast<size_t>(num_threads), count);
    for (size_t i = 1; i < wanted; ++i) helpers.emplace_back(work);
    work();
  }
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

// A shard being written; unpacked documents are cut to sequences.
class Output {
 public:
  Output(const fs::path& path, const EncodeOptions& options)
      : path_(path),
        length_(options.sequence_length),
        packed_(options.packed),
        writer_(path, options.vocab_size, length_, packed_,
                options.mask_prompt || options.with_labels) {}

  void add(const EncodedDocument& document, EncodeResult& result) {
    const std::span<const int32_t> ids = document.ids;
    const std::span<const uint8_t> targets = document.is_target;
    ++result.num_documents;
    if (packed_) {
      add_piece(ids, targets, result);
      return;
    }
    if (ids.size() > length_) ++result.num_cut;
    for (size_t at = 0; at < ids.size(); at += length_) {
      const size_t count = std::min<size_t>(length_, ids.size() - at);
      const auto of_piece = targets.empty() ? targets : targets.subspan(at, count);
      // The first token of a sequence is not predicted.
      if (!targets.empty() && std::count(of_piece.begin() + 1, of_piece.end(), 1) == 0) {
        ++result.num_idle;
      } else {
        add_piece(ids.subspan(at, count), of_piece, result);
      }
    }
  }

  // Looked at before any output is finished: then all of them appear, or none.
  void check_not_empty(const char* what) const {
    if (num_tokens_ >= (packed_ ? length_ : 1)) return;
    throw Error(ErrorKind::kRejected,
                "the " + std::string(what) + " shard " + path_.string() + " would have " +
                    std::to_string(num_tokens_) + " tokens, less than one sequence of " +
                    std::to_string(length_) +
                    "; give more text, a shorter sequence length, --no-pack, or another split");
  }

  tokens::ShardInfo finish() { return writer_.finish(); }

 private:
  void add_piece(std::span<const int32_t> ids, std::span<const uint8_t> targets,
                 EncodeResult& result) {
    writer_.add_document(ids, targets);
    num_tokens_ += ids.size();
    result.num_tokens += ids.size();
  }

  fs::path path_;
  uint64_t length_;
  bool packed_;
  tokens::TokenShardWriter writer_;
  uint64_t num_tokens_ = 0;
};

// What decides on which side a document goes.
uint64_t hash_of(uint64_t seed, const Document& document, const EncodeOptions& options) {
  if (options.documents.prompt_field.empty()) return selection_hash(seed, document.text);
  return selection_hash(seed, document.prompt + '\0' + document.text);
}

uint64_t validation_bound(const std::vector<fs::path>& inputs, const EncodeOptions& options) {
  const ValidationSplit& split = *options.validation;
  if (!split.num_documents) {
    if (!(split.fraction > 0 && split.fraction < 1)) {
      throw Error(ErrorKind::kUsage, "the validation fraction must be above 0 and below 1");
    }
    return selection_bound(split.fraction);
  }
  if (*split.num_documents == 0) throw Error(ErrorKind::kUsage, "0 validation documents asked for");
  SmallestHashes smallest(*split.num_documents);
  DocumentReader documents(inputs, options.documents);
  for (Document document; documents.next(document);) {
    smallest.add(hash_of(split.seed, document, options));
  }
  if (!smallest.overflowed()) {
    throw Error(ErrorKind::kRejected, std::to_string(*split.num_documents) +
                                          " validation documents asked for, the input has " +
                                          std::to_string(smallest.size()) +
                                          " different ones: none is left to train on");
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
                "training and validation output are the same file, " + output.string());
  }
  for (const fs::path& path : outputs) {
    if (path.empty()) throw Error(ErrorKind::kUsage, "an output needs a name");
    for (const fs::path& input : inputs) {
      if (same_file(path, input)) {
        throw Error(ErrorKind::kUsage, "output " + path.string() + " is one of the inputs");
      }
    }
    if (path.has_parent_path()) make_dirs(path.parent_path());
  }
}

int thread_count(int asked) {
  if (asked < 0) throw Error(ErrorKind::kUsage, "the number of threads must not be negative");
  return asked > 0 ? asked : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

struct Chunk {
  std::vector<Document> documents;
  uint64_t bytes_read = 0;  // of the inputs, up to its end
};

Chunk read_chunk(DocumentReader& documents, uint64_t max_bytes) {
  Chunk chunk;
  uint64_t num_bytes = 0;
  for (Document document; num_bytes < max_bytes && chunk.documents.size() < kChunkDocuments;) {
    if (!documents.next(document)) break;
    num_bytes += document.text.size() + document.prompt.size();
    chunk.documents.push_back(std::move(document));
  }
  chunk.bytes_read = documents.bytes_read();
  return chunk;
}

// A document's ids, and whether it goes to validation: its hash is below `bound`.
struct Sorted {
  EncodedDocument document;
  bool validates = false;
};

std::vector<Sorted> encode_chunk(const std::vector<Document>& chunk, int num_threads,
                                 uint64_t bound, const EncodeOptions& options,
                                 const DocumentEncoder& encode) {
  std::vector<Sorted> sorted(chunk.size());
  parallel_for(chunk.size(), num_threads, [&](size_t i) {
    sorted[i].document = encode(chunk[i]);
    sorted[i].validates = bound > 0 && hash_of(options.validation->seed, chunk[i], options) < bound;
  });
  return sorted;
}

}  // namespace

EncodeResult run_pipeline(const std::vector<fs::path>& inputs, const fs::path& output,
                          const EncodeOptions& options, const DocumentEncoder& encode,
                          const ProgressCallback& progress) {
  const int num_threads = thread_count(options.num_threads);
  DocumentReader documents(inputs, options.documents);
  check_outputs(inputs, output, options);
  const uint64_t bound = options.validation ? validation_bound(inputs, options) : 0;
  Output training(output, options);
  std::optional<Output> validation;
  if (options.validation) validation.emplace(options.validation->output, options);

  // With several threads, the next chunk is read while this one is encoded.
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
    for (const Sorted& one : encode_chunk(chunk.documents, num_threads, bound, options, encode)) {
      if (one.document.ids.empty()) continue;
      (one.validates ? *validation : training).add(one.document, result);
    }
    progress({chunk.bytes_read, documents.total_bytes(), result.num_documents, result.num_tokens});
  }
  training.check_not_empty("training");
  if (validation) validation->check_not_empty("validation");
  result.training = training.finish();
  if (validation) result.validation = validation->finish();
  return result;
}

}  // namespace xffl::tokenize
