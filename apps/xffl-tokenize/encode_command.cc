#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iomanip>
#include <iostream>
#include <memory>

#include "commands.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/tokenize/chat.h"
#include "xffl/tokenize/corpus.h"

namespace xffl::app {
namespace {

using std::chrono::steady_clock;

// A signal handler can set only a global variable.
volatile sig_atomic_t interrupted = 0;
void interrupt(int) { interrupted = 1; }

void on_interrupt(void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

constexpr std::chrono::milliseconds kRedraw{200};
constexpr std::chrono::seconds kNextLine{5};
constexpr size_t kBarWidth = 30;

std::string bar(double done) {
  const auto filled = static_cast<size_t>(done * static_cast<double>(kBarWidth));
  return "[" + std::string(filled, '#') + std::string(kBarWidth - filled, '.') + "]";
}

// Progress on stderr: on a terminal a progress bar, elsewhere a line every few seconds. During the
// lifetime of a ProgressLine, Ctrl-C does not end the process: the next show() throws kCancelled.
class ProgressLine {
 public:
  ProgressLine();
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void show(const tokenize::Progress& progress);
  double seconds() const;

 private:
  using Time = std::chrono::steady_clock::time_point;
  void draw(const tokenize::Progress& progress, Time now);

  bool terminal_;
  Time start_;
  Time last_;
};

ProgressLine::ProgressLine()
    : terminal_(log::live_line_width() > 0), start_(steady_clock::now()), last_(start_) {
  on_interrupt(interrupt);
}

ProgressLine::~ProgressLine() {
  log::set_live_line("");
  on_interrupt(SIG_DFL);
}

double ProgressLine::seconds() const {
  return std::chrono::duration<double>(steady_clock::now() - start_).count();
}

void ProgressLine::show(const tokenize::Progress& progress) {
  if (interrupted != 0) throw Error(ErrorKind::kCancelled, "stopped; no output was written");
  const Time now = steady_clock::now();
  if (now - last_ < (terminal_ ? std::chrono::milliseconds(kRedraw) : kNextLine)) return;
  last_ = now;
  draw(progress, now);
}

void ProgressLine::draw(const tokenize::Progress& progress, Time now) {
  const double done = progress.bytes_total > 0 ? static_cast<double>(progress.bytes_done) /
                                                     static_cast<double>(progress.bytes_total)
                                               : 1.0;
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  const double rate = static_cast<double>(progress.tokens) / elapsed / 1e6;
  const double left = done > 0 ? elapsed * (1 - done) / done : 0;
  char text[120];
  std::snprintf(text, sizeof text, "%s %3.0f %%  %.1f M tokens, %.2f M/s, %.0f s left",
                terminal_ ? bar(done).c_str() : "encoding:", 100 * done,
                static_cast<double>(progress.tokens) / 1e6, rate, left);
  terminal_ ? log::set_live_line(text) : static_cast<void>(std::fprintf(stderr, "%s\n", text));
}

struct EncodeFlags {
  InputFlags input;
  std::string tokenizer;
  std::string output;
  std::string validation_output;
  std::optional<double> validation_fraction;
  std::optional<uint64_t> validation_documents;
  uint64_t seed = 0;
  std::string prompt;
  tokenize::EncodeOptions options;
};

tokenize::EncodeOptions options_of(const EncodeFlags& flags) {
  tokenize::EncodeOptions options = flags.options;
  options.documents = flags.input.options();
  if (!options.documents.whole_rows) options.documents.row_ids = options.sequence_length;
  if (options.truncate) options.packed = false;
  const bool has_prompts = !flags.input.prompt_field.empty();
  if (has_prompts && flags.prompt.empty()) {
    options.prompt = tokenize::PromptTemplate(tokens::kPromptThenText);
  }
  if (!flags.prompt.empty()) options.prompt = tokenize::PromptTemplate(flags.prompt);
  if (!flags.validation_output.empty()) {
    tokenize::ValidationSplit split;
    split.output = flags.validation_output;
    split.fraction = flags.validation_fraction.value_or(split.fraction);
    split.num_documents = flags.validation_documents;
    split.seed = flags.seed;
    options.validation = split;
  }
  return options;
}

void print_shard(const std::string& path, const tokens::ShardInfo& info) {
  std::cout << path << ": " << info.num_tokens << " tokens, " << info.num_sequences
            << " sequences of " << (info.packed ? "" : "up to ") << info.sequence_length << ", "
            << info.num_documents << (info.packed ? " documents" : " documents or pieces of them")
            << (info.has_targets ? ", with targets" : "") << ", vocabulary " << info.vocab_size
            << '\n';
}

void print_result(const EncodeFlags& flags, const tokenize::EncodeResult& result, double seconds) {
  print_shard(flags.output, result.training);
  uint64_t written = result.training.num_tokens;
  if (result.validation) {
    print_shard(flags.validation_output, *result.validation);
    written += result.validation->num_tokens;
  }
  if (written < result.num_tokens) {
    std::cout << result.num_tokens - written
              << " tokens at the end did not fill a sequence and were dropped\n";
  }
  if (result.num_cut > 0) {
    std::cout << result.num_cut << " documents were longer than " << flags.options.sequence_length
              << " tokens and were cut " << (flags.options.truncate ? "off\n" : "into pieces\n");
  }
  if (result.num_idle > 0) {
    std::cout << result.num_idle << " pieces held only prompt and were dropped\n";
  }
  std::cout << result.num_documents << " documents, " << std::fixed << std::setprecision(1)
            << seconds << " s\n";
}

// A table holds ids if no tokenizer encodes its text.
bool holds_ids(const EncodeFlags& flags) {
  const tokenize::InputFormat format = tokenize::format_named(flags.input.format);
  if (tokenize::holds_ids(format)) return true;
  return flags.tokenizer.empty() && std::ranges::all_of(flags.input.paths(), [&](const auto& path) {
           return tokenize::is_table(path, format);
         });
}

void encode(const EncodeFlags& flags) {
  const bool ids = holds_ids(flags);
  const tokenize::EncodeOptions options = options_of(flags);
  if (!ids && flags.tokenizer.empty()) {
    throw Error(ErrorKind::kUsage,
                "text needs --tokenizer FILE; ids need --format ids or bin, or tables with ids");
  }
  if (!ids && options.vocab_size != 0) {
    throw Error(ErrorKind::kUsage,
                "--vocab-size needs ids; for text, the tokenizer determines the size");
  }
  if (options.documents.format == tokenize::InputFormat::kChat && !flags.prompt.empty())
    throw Error(ErrorKind::kUsage, "--format chat excludes --template: use --chat-template");
  if (ids && (!flags.tokenizer.empty() || !flags.prompt.empty())) {
    throw Error(ErrorKind::kUsage,
                "ids exclude --tokenizer and --template: ids are stored unchanged");
  }
  ProgressLine line;
  const auto progress = [&line](const tokenize::Progress& now) { line.show(now); };
  tokenize::EncodeResult result;
  if (ids) {
    result = tokenize::encode_ids(flags.input.paths(), flags.output, options, progress);
  } else {
    const tokenize::Tokenizer tokenizer(flags.tokenizer);
    result =
        tokenize::encode_corpus(tokenizer, flags.input.paths(), flags.output, options, progress);
  }
  print_result(flags, result, line.seconds());
}

void add_validation_flags(CLI::App& command, EncodeFlags& flags) {
  CLI::Option* output = command.add_option("--validation-output", flags.validation_output,
                                           "Shard of the documents for validation");
  CLI::Option* fraction = command
                              .add_option("--validation-fraction", flags.validation_fraction,
                                          "Share of the documents for validation (default 0.05)")
                              ->needs(output);
  command
      .add_option("--validation-documents", flags.validation_documents,
                  "Number of documents for validation, instead of a share")
      ->needs(output)
      ->excludes(fraction);
  command.add_option("--seed", flags.seed, "Seed of the selection for validation")
      ->capture_default_str();
}

}  // namespace

void add_encode_command(CLI::App& app) {
  auto flags = std::make_shared<EncodeFlags>();
  CLI::App* command =
      app.add_subcommand("encode", "Encode text, conversations or ids as a token shard");
  flags->input.add_to(*command, true);
  command->add_option("--tokenizer", flags->tokenizer,
                      "Path of a tokenizer.model or tokenizer.json, or of their folder");
  command->add_option("--output", flags->output, "Shard to write, for example it.tokens")
      ->required();
  add_validation_flags(*command, *flags);
  command->add_option("--template", flags->prompt,
                      "Prompt, for example 'Scrivi un documento: {text}'");
  command->add_option(
      "--prompt-field", flags->input.prompt_field,
      "Field of a JSONL object, or column of a table, with the prompt of its text: {prompt} in the "
      "template (default '" +
          std::string(tokens::kPromptThenText) + "')");
  command
      ->add_option("--chat-template", flags->options.chat_template,
                   "With --format chat: the template of the model's conversations")
      ->check(CLI::IsMember(tokenize::chat_template_names()));
  command->add_flag("--mask-prompt", flags->options.mask_prompt,
                    "No loss on the tokens before {text}; the ids do not change");
  command->add_flag("--bos,!--no-bos", flags->options.bos, "BOS before each document (default on)");
  command->add_flag("--eos,!--no-eos", flags->options.eos, "EOS after each document (default on)");
  command->add_option("--sequence-length", flags->options.sequence_length, "Tokens per sequence")
      ->capture_default_str();
  command->add_flag("--pack,!--no-pack", flags->options.packed,
                    "Pack documents into full sequences (default), or one document per sequence");
  command->add_flag("--truncate", flags->options.truncate,
                    "One sequence per document (--no-pack): cut a longer document off, keep EOS");
  command->add_option("--pad-id", flags->options.pad_id,
                      "With --truncate: fill shorter sequences with this id, without loss");
  command->add_option("--vocab-size", flags->options.vocab_size,
                      "For ids: the size of the vocabulary");
  command->add_flag(
      "--labels", flags->options.with_labels,
      "For ids: an error if they have no labels. Lines with labels are {\"input_ids\": [...], "
      "\"labels\": [...]}, as in HF's data sets; a label of -100 has no loss");
  command->add_option("--threads", flags->options.num_threads, "0: one per available CPU")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  command->callback([flags] { encode(*flags); });
}

}  // namespace xffl::app
