#include <fstream>
#include <ostream>

#include "encoding_pipeline.h"
#include "xffl/base/error.h"
#include "xffl/tokenize/corpus.h"

namespace xffl::tokenize {
namespace {

namespace fs = std::filesystem;

bool is_shard(const fs::path& path) {
  char begin[8] = {};
  std::ifstream(path, std::ios::binary).read(begin, sizeof begin);
  return std::string_view(begin, sizeof begin) == "XFFLTOK1";
}

// Writes documents with a blank line between them.
class TextOutput {
 public:
  TextOutput(const Tokenizer& tokenizer, uint64_t limit, std::ostream& out)
      : tokenizer_(tokenizer), limit_(limit), out_(out) {}

  bool full() const { return limit_ > 0 && num_documents_ == limit_; }
  uint64_t num_documents() const { return num_documents_; }

  void add(std::span<const int32_t> ids) {
    out_ << (num_documents_ > 0 ? "\n" : "") << tokenizer_.decode(ids) << '\n';
    if (!out_) throw Error(ErrorKind::kIo, "the text could not be written: is the disk full?");
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

uint64_t decode_corpus(const Tokenizer& tokenizer, const fs::path& input, uint64_t limit,
                       std::ostream& out) {
  TextOutput text(tokenizer, limit, out);
  is_shard(input) ? decode_shard(input, text) : decode_ids(tokenizer, input, text);
  return text.num_documents();
}

}  // namespace xffl::tokenize
