#include <sentencepiece_trainer.h>

#include <exception>
#include <sstream>
#include <unordered_map>
#include <utility>

#include "hf_files.h"
#include "selection.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"
#include "xffl/tokenize/tokenizer.h"

namespace xffl::tokenize {
namespace {

namespace fs = std::filesystem;

// SentencePiece learns from lines; longer ones are cut at a space, or where they must.
constexpr size_t kMaxLineBytes = 4000;

size_t cut_point(std::string_view text) {
  if (text.size() <= kMaxLineBytes) return text.size();
  const size_t space = text.rfind(' ', kMaxLineBytes);
  if (space != std::string_view::npos && space > 0) return space;
  size_t cut = kMaxLineBytes;
  while ((static_cast<unsigned char>(text[cut]) & 0xc0) == 0x80) --cut;
  return cut;
}

// The lines of the documents, or a seeded sample of them. An error waits in `failure`: exceptions
// do not cross SentencePiece.
class LineSource final : public sentencepiece::SentenceIterator {
 public:
  LineSource(const std::vector<fs::path>& inputs, const TrainOptions& options)
      : documents_(inputs, options.documents), seed_(options.seed) {
    const auto total = static_cast<double>(documents_.total_bytes());
    const double fraction = total > 0 ? static_cast<double>(options.sample_bytes) / total : 1.0;
    bound_ = selection_bound(fraction);
    Next();
  }

  bool done() const override { return done_; }
  const std::string& value() const override { return line_; }
  sentencepiece::util::Status status() const override {
    if (!failure_) return {};
    return {sentencepiece::util::StatusCode::kInternal, "the input could not be read"};
  }
  void Next() override {
    try {
      do {
        done_ = !advance();
      } while (!done_ && !chosen());
    } catch (...) {
      failure_ = std::current_exception();
      done_ = true;
    }
    if (!done_) ++num_lines_;
  }

  std::exception_ptr failure() const { return failure_; }
  uint64_t num_lines() const { return num_lines_; }

 private:
  bool chosen() const {
    if (line_.empty() || line_.find('\0') != std::string::npos) return false;
    return bound_ == UINT64_MAX || selection_hash(seed_, line_) < bound_;
  }

  bool advance() {
    while (rest_.empty()) {
      if (!documents_.next(document_)) return false;
      rest_ = document_.text;
    }
    std::string_view line = rest_.substr(0, rest_.find('\n'));
    const bool whole_line = line.size() <= kMaxLineBytes;
    line = line.substr(0, cut_point(line));
    line_ = line;
    rest_.remove_prefix(line.size());
    if (whole_line && !rest_.empty()) rest_.remove_prefix(1);
    return true;
  }

  DocumentReader documents_;
  uint64_t seed_;
  uint64_t bound_ = 0;
  Document document_;
  std::string_view rest_;
  std::string line_;
  bool done_ = false;
  std::exception_ptr failure_;
  uint64_t num_lines_ = 0;
};

std::unordered_map<std::string, std::string> trainer_arguments(const TrainOptions& options) {
  std::ostringstream coverage;
  coverage << options.character_coverage;
  return {
      {"model_type", options.model_type == ModelType::kBpe ? "bpe" : "unigram"},
      {"vocab_size", std::to_string(options.vocab_size)},
      {"character_coverage", coverage.str()},
      {"byte_fallback", options.byte_fallback ? "true" : "false"},
      {"normalization_rule_name", "identity"},
      {"remove_extra_whitespaces", "false"},
      {"allow_whitespace_only_pieces", "true"},
      {"split_digits", "true"},
      {"unk_id", "0"},
      {"bos_id", "1"},
      {"eos_id", "2"},
      {"pad_id", "-1"},
      {"max_sentence_length", std::to_string(kMaxLineBytes + 1)},
      // Sums of probabilities depend on it: fixed, so that every machine learns the same model.
      {"num_threads", "4"},
      {"minloglevel", "2"},
  };
}

void check_options(const TrainOptions& options) {
  const uint64_t least = 3 + (options.byte_fallback ? 256 : 0) + 1;
  if (options.vocab_size < least || options.vocab_size > 1000000) {
    throw Error(ErrorKind::kUsage, "vocabulary size " + std::to_string(options.vocab_size) +
                                       ", expected " + std::to_string(least) + " to 1000000");
  }
  if (!(options.character_coverage >= 0.9 && options.character_coverage <= 1.0)) {
    throw Error(ErrorKind::kUsage, "character coverage must be 0.9 to 1");
  }
  if (options.sample_bytes == 0) throw Error(ErrorKind::kUsage, "a sample of 0 bytes");
}

// SentencePiece's reason without the source line and the condition that it puts in front.
std::string reason_of(const sentencepiece::util::Status& status) {
  const std::string text = status.ToString();
  const size_t end_of_condition = text.rfind("] ");
  return log::printable(
      end_of_condition == std::string::npos ? text : text.substr(end_of_condition + 2), 500);
}

std::string learn(const std::vector<fs::path>& inputs, const TrainOptions& options,
                  uint64_t& num_lines) {
  LineSource lines(inputs, options);
  if (lines.failure()) std::rethrow_exception(lines.failure());
  if (lines.done())
    throw Error(ErrorKind::kRejected, "cannot train a tokenizer: the input has no text");
  std::string model;
  const auto status =
      sentencepiece::SentencePieceTrainer::Train(trainer_arguments(options), &lines, &model);
  if (lines.failure()) std::rethrow_exception(lines.failure());
  if (!status.ok()) {
    throw Error(ErrorKind::kRejected, "cannot train a tokenizer with a vocabulary of " +
                                          std::to_string(options.vocab_size) +
                                          " from this text: " + reason_of(status));
  }
  num_lines = lines.num_lines();
  return model;
}

}  // namespace

TrainedModel train(const std::vector<fs::path>& inputs, const fs::path& output,
                   const TrainOptions& options) {
  check_options(options);
  TrainedModel trained;
  const std::string model = learn(inputs, options, trained.num_lines);
  const bool names_file = output.extension() == ".model" && !fs::is_directory(output);
  trained.model = names_file ? output : output / "tokenizer.model";
  const fs::path folder = trained.model.has_parent_path() ? trained.model.parent_path() : ".";
  make_dirs(folder);
  write_file_atomic(trained.model, model);
  trained.config = write_hf_files(model, options.model_type, folder);
  trained.vocab_size = Tokenizer(trained.model).vocab_size();
  return trained;
}

}  // namespace xffl::tokenize
