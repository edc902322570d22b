#include <iomanip>
#include <iostream>
#include <memory>

#include "commands.h"
#include "progress_line.h"
#include "xffl/base/error.h"
#include "xffl/tokenize/corpus.h"

namespace xffl::app {
namespace {

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
  const bool has_prompts = !flags.input.prompt_field.empty();
  if (has_prompts && flags.prompt.empty()) {
    options.prompt = tokenize::PromptTemplate("{prompt}{text}");
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
              << " tokens did not fill a sequence and were left out\n";
  }
  if (result.num_cut > 0) {
    std::cout << result.num_cut << " documents were longer than " << flags.options.sequence_length
              << " tokens and were cut into pieces\n";
  }
  if (result.num_idle > 0) {
    std::cout << result.num_idle << " of the pieces had nothing but prompt and were left out\n";
  }
  std::cout << result.num_documents << " documents, " << std::fixed << std::setprecision(1)
            << seconds << " s\n";
}

void encode(const EncodeFlags& flags) {
  const bool ids = flags.input.format == "ids";
  const tokenize::EncodeOptions options = options_of(flags);
  if (!ids && flags.tokenizer.empty()) {
    throw Error(ErrorKind::kUsage, "text needs --tokenizer FILE (or --format ids)");
  }
  if (!ids && options.vocab_size != 0) {
    throw Error(ErrorKind::kUsage, "--vocab-size goes with --format ids; text has its tokenizer's");
  }
  if (ids && (!flags.tokenizer.empty() || !flags.prompt.empty())) {
    throw Error(ErrorKind::kUsage,
                "--format ids takes ids as they are: no --tokenizer, no --template");
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
                                           "A shard for documents kept apart for validation");
  CLI::Option* fraction = command
                              .add_option("--validation-fraction", flags.validation_fraction,
                                          "Their share of the documents (default 0.05)")
                              ->needs(output);
  command.add_option("--validation-documents", flags.validation_documents, "Their number, instead")
      ->needs(output)
      ->excludes(fraction);
  command.add_option("--seed", flags.seed, "Chooses the validation documents")
      ->capture_default_str();
}

}  // namespace

void add_encode_command(CLI::App& app) {
  auto flags = std::make_shared<EncodeFlags>();
  CLI::App* command = app.add_subcommand("encode", "Turn text, JSONL or ids into a token shard");
  flags->input.add_to(*command, true);
  command->add_option("--tokenizer", flags->tokenizer,
                      "A tokenizer.model, a tokenizer.json, or a folder with one");
  command->add_option("--output", flags->output, "The shard, for example it.tokens")->required();
  add_validation_flags(*command, *flags);
  command->add_option("--template", flags->prompt,
                      "A prompt, for example 'Scrivi un documento: {text}'");
  command->add_option("--prompt-field", flags->input.prompt_field,
                      "The field of a JSONL object that its text answers: {prompt} in the template "
                      "(default '{prompt}{text}')");
  command->add_flag("--mask-prompt", flags->options.mask_prompt,
                    "No loss on what comes before {text}: the ids stay the same");
  command->add_flag("--bos,!--no-bos", flags->options.bos, "BOS before each document (default on)");
  command->add_flag("--eos,!--no-eos", flags->options.eos, "EOS after each document (default on)");
  command->add_option("--sequence-length", flags->options.sequence_length, "Tokens in a sequence")
      ->capture_default_str();
  command->add_flag("--pack,!--no-pack", flags->options.packed,
                    "Fill every sequence across documents (default), or one document a sequence");
  command->add_option("--vocab-size", flags->options.vocab_size,
                      "With --format ids: ids are below it");
  command->add_flag(
      "--labels", flags->options.with_labels,
      "With --format ids: lines are {\"input_ids\": [...], \"labels\": [...]}, as HF's "
      "data sets; a label of -100 has no loss");
  command->add_option("--threads", flags->options.num_threads, "0: as many as the machine has")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  command->callback([flags] { encode(*flags); });
}

}  // namespace xffl::app
