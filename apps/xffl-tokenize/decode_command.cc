#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
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

// A temporary file: renamed when complete, removed otherwise.
class PartFile {
 public:
  explicit PartFile(std::filesystem::path path)
      : path_(std::move(path)), part_(path_.string() + ".part-" + random_hex(4)) {
    open_file(part_, O_WRONLY | O_CREAT | O_EXCL);
    stream_.open(part_, std::ios::binary);
  }
  PartFile(const PartFile&) = delete;
  PartFile& operator=(const PartFile&) = delete;
  ~PartFile() { ::unlink(part_.c_str()); }

  std::ostream& stream() { return stream_; }
  void publish() {
    stream_.close();
    if (!stream_)
      throw Error(ErrorKind::kIo, "cannot write " + path_.string() + ": is the disk full?");
    rename_durable(part_, path_);
  }

 private:
  std::filesystem::path path_;
  std::filesystem::path part_;
  std::ofstream stream_;
};

void decode(const DecodeFlags& flags) {
  const tokenize::Tokenizer tokenizer(flags.tokenizer);
  if (flags.output.empty()) {
    tokenize::decode_corpus(tokenizer, flags.input, flags.limit, std::cout);
    std::cout.flush();
    return;
  }
  PartFile file(flags.output);
  const uint64_t count =
      tokenize::decode_corpus(tokenizer, flags.input, flags.limit, file.stream());
  file.publish();
  std::cout << flags.output << ": " << count << " documents\n";
}

}  // namespace

void add_decode_command(CLI::App& app) {
  auto flags = std::make_shared<DecodeFlags>();
  CLI::App* command = app.add_subcommand("decode", "Turn a shard, or lines of ids, back into text");
  command
      ->add_option("--tokenizer", flags->tokenizer,
                   "A tokenizer.model, a tokenizer.json, or a folder with one")
      ->required();
  command->add_option("--input", flags->input, "A shard, or a file of JSON arrays of ids")
      ->required();
  command->add_option("--output", flags->output, "A text file; else standard output");
  command->add_option("--limit", flags->limit, "The first documents only; 0: all")
      ->capture_default_str();
  command->callback([flags] { decode(*flags); });
}

}  // namespace xffl::app
