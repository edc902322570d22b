#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <exception>
#include <sstream>
#include <unordered_map>
#include <utility>

#include "characters.h"
#include "selection.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/base/log.h"
#include "xffl/tokenize/tokenizer.h"

namespace xffl::tokenize {
namespace {

namespace fs = std::filesystem;

// SentencePiece learns from lines. LineSource cuts a longer line at a space, or else inside a word.
constexpr size_t kMaxLineBytes = 4000;

size_t cut_point(std::string_view text) {
  if (text.size() <= kMaxLineBytes) return text.size();
  const size_t space = text.rfind(' ', kMaxLineBytes);
  if (space != std::string_view::npos && space > 0) return space;
  size_t cut = kMaxLineBytes;
  while ((static_cast<unsigned char>(text[cut]) & 0xc0) == 0x80) --cut;
  return cut;
}

// The lines of the documents, or a seeded sample. An exception must not cross SentencePiece:
// failure() returns the exception.
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
      // Sums of probabilities depend on the number of threads: a fixed number gives the same model
      // on every machine.
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
  if (options.sample_bytes == 0) throw Error(ErrorKind::kUsage, "the sample has 0 bytes");
}

// SentencePiece's reason without the preceding source line and condition.
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

// Files with which HF transformers gives the same ids. HF's LlamaTokenizer reads the
// tokenizer.model of a BPE model. No class of transformers 5 reads a unigram tokenizer.model:
// tokenizer.json describes the unigram model to the tokenizers library. The steps in tokenizer.json
// are the steps of transformers 4 for a LLaMA's SentencePiece model
// (convert_slow_tokenizer.LlamaConverter).

Json common_config() {
  Json config;
  config["unk_token"] = "<unk>";
  config["bos_token"] = "<s>";
  config["eos_token"] = "</s>";
  config["pad_token"] = nullptr;
  config["clean_up_tokenization_spaces"] = false;
  return config;
}

// HF calls SentencePiece's own treatment of spaces "legacy".
Json llama_config() {
  Json config = common_config();
  config["tokenizer_class"] = "LlamaTokenizer";
  config["add_bos_token"] = true;
  config["add_eos_token"] = false;
  config["add_prefix_space"] = true;
  config["legacy"] = true;
  config["use_default_system_prompt"] = false;
  return config;
}

Json special_tokens() {
  Json tokens = Json::array();
  for (const char* content : {"<unk>", "<s>", "</s>"})
    tokens.push_back({{"id", tokens.size()},
                      {"content", content},
                      {"single_word", false},
                      {"lstrip", false},
                      {"rstrip", false},
                      {"normalized", false},
                      {"special", true}});
  return tokens;
}

// Puts "<s>" before a text, and before each text of a pair.
Json template_processing() {
  const auto bos = [](int type) {
    return Json{{"SpecialToken", {{"id", "<s>"}, {"type_id", type}}}};
  };
  const auto text = [](const char* id, int type) {
    return Json{{"Sequence", {{"id", id}, {"type_id", type}}}};
  };
  const Json ids = Json::array({1}), tokens = Json::array({"<s>"});
  return {{"type", "TemplateProcessing"},
          {"single", Json::array({bos(0), text("A", 0)})},
          {"pair", Json::array({bos(0), text("A", 0), bos(1), text("B", 1)})},
          {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", ids}, {"tokens", tokens}}}}}};
}

Json replace(std::string_view from, std::string_view to) {
  return {{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
}

Json sequence(const char* key, Json steps) {
  return {{"type", "Sequence"}, {key, std::move(steps)}};
}

Json unigram(std::string_view bytes) {
  sentencepiece::SentencePieceProcessor model;
  const auto status = model.LoadFromSerializedProto(bytes);
  if (!status.ok()) throw Error(ErrorKind::kInternal, "the new model: " + status.ToString());
  Json vocabulary = Json::array();
  for (int id = 0; id < model.GetPieceSize(); ++id)
    vocabulary.push_back(Json::array({model.IdToPiece(id), double{model.GetScore(id)}}));
  return {{"type", "Unigram"},
          {"unk_id", model.unk_id()},
          {"vocab", std::move(vocabulary)},
          {"byte_fallback", model.PieceToId("<0x00>") != model.unk_id()}};
}

Json tokenizers_file(std::string_view model) {
  return {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", special_tokens()},
      {"normalizer",
       sequence("normalizers", Json::array({{{"type", "Prepend"}, {"prepend", kSpaceMark}},
                                            replace(" ", kSpaceMark)}))},
      {"pre_tokenizer", nullptr},
      {"post_processor", template_processing()},
      {"decoder",
       sequence("decoders",
                Json::array({replace(kSpaceMark, " "),
                             {{"type", "ByteFallback"}},
                             {{"type", "Fuse"}},
                             {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}))},
      {"model", unigram(model)}};
}

// Writes tokenizer_config.json into `folder` and, for a unigram model, tokenizer.json. `model` is
// the SentencePiece model. Returns the path of tokenizer_config.json.
std::filesystem::path write_hf_files(std::string_view model, ModelType type,
                                     const std::filesystem::path& folder) {
  Json config = llama_config();
  if (type == ModelType::kUnigram) {
    write_file_atomic(folder / "tokenizer.json", tokenizers_file(model).dump(1) + "\n");
    config = common_config();
    config["tokenizer_class"] = "PreTrainedTokenizerFast";
  }
  write_file_atomic(folder / "tokenizer_config.json", config.dump(2) + "\n");
  return folder / "tokenizer_config.json";
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
