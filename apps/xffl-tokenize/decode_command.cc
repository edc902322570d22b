#include <iostream>
#include <memory>
#include <sstream>

#include "commands.h"
#include "xffl/base/file.h"
#include "xffl/tokenize/corpus.h"

namespace xffl::app {
namespace {

struct DecodeFlags {
  std::string tokenizer;
  std::string input;
  std::string output;
  uint64_t limit = 0;
};

void decode(const DecodeFlags& flags) {
  const tokenize::Tokenizer tokenizer(flags.tokenizer);
  if (flags.output.empty()) {
    tokenize::decode_corpus(tokenizer, flags.input, flags.limit, std::cout);
    std::cout.flush();
    return;
  }
  std::ostringstream text;
  const uint64_t count = tokenize::decode_corpus(tokenizer, flags.input, flags.limit, text);
  write_file_atomic(flags.output, text.str());
  std::cout << flags.output << ": " << count << " documents\n";
}

}  // namespace

void add_decode_command(CLI::App& app) {
  auto flags = std::make_shared<DecodeFlags>();
  CLI::App* command = app.add_subcommand("decode", "Turn a shard, or lines of ids, back into text");
  command->add_option("--tokenizer", flags->tokenizer, "A tokenizer.model")->required();
  command->add_option("--input", flags->input, "A shard, or a file of JSON arrays of ids")
      ->required();
  command->add_option("--output", flags->output, "A text file; else standard output");
  command->add_option("--limit", flags->limit, "The first documents only; 0: all")
      ->capture_default_str();
  command->callback([flags] { decode(*flags); });
}

}  // namespace xffl::app
