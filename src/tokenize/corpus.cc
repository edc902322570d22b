#include "xffl/tokenize/corpus.h"

#include "encoding_pipeline.h"
#include "xffl/base/error.h"
#include "xffl/base/json.h"

namespace xffl::tokenize {

EncodeResult encode_corpus(const Tokenizer& tokenizer,
                           const std::vector<std::filesystem::path>& inputs,
                           const std::filesystem::path& output, const EncodeOptions& options,
                           const ProgressCallback& progress) {
  if (options.bos && tokenizer.bos_id() < 0) {
    throw Error(ErrorKind::kUsage, "the tokenizer has no BOS token: encode with --no-bos");
  }
  if (options.eos && tokenizer.eos_id() < 0) {
    throw Error(ErrorKind::kUsage, "the tokenizer has no EOS token: encode with --no-eos");
  }
  EncodeOptions own = options;
  own.vocab_size = tokenizer.vocab_size();
  const auto encode = [&](const Document& document) {
    std::vector<int32_t> ids = tokenizer.encode(options.prompt.apply(document.text));
    if (options.bos) ids.insert(ids.begin(), tokenizer.bos_id());
    if (options.eos) ids.push_back(tokenizer.eos_id());
    return ids;
  };
  return run_pipeline(inputs, output, own, encode, progress);
}

std::vector<int32_t> parse_ids(const Document& line, uint64_t vocab_size) {
  const Json json =
      parse_json(line.text, line.where(), {.max_bytes = kMaxDocumentBytes, .max_depth = 2});
  if (!json.is_array() || json.empty()) {
    throw Error(ErrorKind::kCorrupt,
                line.where() + ": expected a JSON array of one or more token ids");
  }
  std::vector<int32_t> ids;
  ids.reserve(json.size());
  for (const Json& value : json) {
    // A negative number is not unsigned, nor is 1.0.
    if (!value.is_number_unsigned() || value.get<uint64_t>() >= vocab_size) {
      throw Error(ErrorKind::kCorrupt, line.where() + ": element " + std::to_string(ids.size()) +
                                           " is " + value.dump().substr(0, 40) +
                                           ", expected a token id 0 to " +
                                           std::to_string(vocab_size - 1));
    }
    ids.push_back(static_cast<int32_t>(value.get<uint64_t>()));
  }
  return ids;
}

EncodeResult encode_ids(const std::vector<std::filesystem::path>& inputs,
                        const std::filesystem::path& output, const EncodeOptions& options,
                        const ProgressCallback& progress) {
  if (options.vocab_size < 1 || options.vocab_size > INT32_MAX) {
    throw Error(ErrorKind::kUsage, "ids need the size of their vocabulary: --vocab-size");
  }
  EncodeOptions own = options;
  own.documents.format = InputFormat::kIds;
  const auto encode = [&](const Document& line) {
    std::vector<int32_t> ids = parse_ids(line, own.vocab_size);
    if (!own.packed && ids.size() > own.sequence_length) {
      throw Error(ErrorKind::kCorrupt, line.where() + ": " + std::to_string(ids.size()) +
                                           " ids, a sequence has at most " +
                                           std::to_string(own.sequence_length) +
                                           " (--sequence-length)");
    }
    return ids;
  };
  return run_pipeline(inputs, output, own, encode, progress);
}

}  // namespace xffl::tokenize
