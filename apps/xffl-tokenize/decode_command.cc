#include <fstream>
#include <iostream>
#include <memory>

#include "commands.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/sha256.h"
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
  TempFile file(flags.output, ".part-" + random_hex(4));
  std::ofstream stream(file.path(), std::ios::binary);
  const uint64_t count = tokenize::decode_corpus(tokenizer, flags.input, flags.limit, stream);
  stream.close();
  if (!stream) throw Error(ErrorKind::kIo, "cannot write " + flags.output + ": is the disk full?");
  file.sync();
  file.publish();
  std::cout << flags.output << ": " << count << " documents\n";
}

}  // namespace

void add_decode_command(CLI::App& app) {
  auto flags = std::make_shared<DecodeFlags>();
  CLI::App* command = app.add_subcommand("decode", "Decode a shard, or lines of ids, to text");
  command
      ->add_option("--tokenizer", flags->tokenizer,
                   "Path of a tokenizer.model or tokenizer.json, or of their folder")
      ->required();
  command->add_option("--input", flags->input, "Shard, or file of JSON arrays of ids")->required();
  command->add_option("--output", flags->output, "Text file to write; default: standard output");
  command->add_option("--limit", flags->limit, "Number of documents; 0: all")
      ->capture_default_str();
  command->callback([flags] { decode(*flags); });
}

}  // namespace xffl::app
