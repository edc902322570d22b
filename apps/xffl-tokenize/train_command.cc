#include <iostream>
#include <memory>

#include "commands.h"
#include "xffl/tokenize/tokenizer.h"

namespace xffl::app {
namespace {

struct TrainFlags {
  InputFlags input;
  std::string output;
  std::string model_type = "bpe";
  uint64_t sample_megabytes = 100;
  tokenize::TrainOptions options;
};

void train(const TrainFlags& flags) {
  tokenize::TrainOptions options = flags.options;
  options.documents = flags.input.options();
  options.model_type =
      flags.model_type == "bpe" ? tokenize::ModelType::kBpe : tokenize::ModelType::kUnigram;
  options.sample_bytes = flags.sample_megabytes << 20;
  const tokenize::TrainedModel trained =
      tokenize::train(flags.input.paths(), flags.output, options);
  std::cout << trained.model.string() << ": " << trained.vocab_size << " tokens, trained on "
            << trained.num_lines << " lines\n";
}

}  // namespace

void add_train_command(CLI::App& app) {
  auto flags = std::make_shared<TrainFlags>();
  CLI::App* command = app.add_subcommand("train", "Train a SentencePiece tokenizer on text");
  flags->input.add_to(*command, false);
  command
      ->add_option("--output", flags->output,
                   "Folder for tokenizer.model, or a file name that ends in .model")
      ->required();
  command->add_option("--vocab-size", flags->options.vocab_size, "Number of tokens")->required();
  command->add_option("--model-type", flags->model_type, "bpe or unigram")
      ->check(CLI::IsMember({"bpe", "unigram"}))
      ->capture_default_str();
  command
      ->add_option("--character-coverage", flags->options.character_coverage,
                   "Share of the text's characters with tokens of their own (the other characters: "
                   "see --byte-fallback)")
      ->capture_default_str();
  command->add_flag("--byte-fallback,!--no-byte-fallback", flags->options.byte_fallback,
                    "Encode unknown characters as bytes (default), or as <unk>");
  command
      ->add_option("--sample-megabytes", flags->sample_megabytes,
                   "Sample size: a larger text is sampled")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  command->add_option("--seed", flags->options.seed, "Seed of the sample")->capture_default_str();
  command->callback([flags] { train(*flags); });
}

}  // namespace xffl::app
