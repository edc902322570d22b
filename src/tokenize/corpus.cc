#include "xffl/tokenize/corpus.h"

#include <algorithm>

#include "encoding_pipeline.h"
#include "xffl/base/error.h"
#include "xffl/base/json.h"

namespace xffl::tokenize {
namespace {

constexpr int kHfIgnoredLabel = -100;  // to torch's cross-entropy, and so in HF's data sets

void check_options(const Tokenizer& tokenizer, const EncodeOptions& options) {
  const auto refuse = [](const std::string& problem) { throw Error(ErrorKind::kUsage, problem); };
  if (options.bos && tokenizer.bos_id() < 0) {
    refuse("the tokenizer puts no BOS token before a text: encode with --no-bos");
  }
  if (options.eos && tokenizer.eos_id() < 0) {
    refuse(
        "the tokenizer has no EOS token (a tokenizer.json has it in the tokenizer_config.json "
        "beside it): encode with --no-eos");
  }
  if (options.prompt.has_prompt() && options.documents.prompt_field.empty()) {
    refuse("the template has {prompt}: name the field that holds it with --prompt-field");
  }
  if (!options.prompt.has_prompt() && !options.documents.prompt_field.empty()) {
    refuse("there is a --prompt-field, but the template has no {prompt}");
  }
  if (options.with_labels) refuse("labels come with ids: --format ids");
  if (options.mask_prompt && options.prompt.begins_with_text()) {
    refuse(
        "--mask-prompt has nothing to mask: give a --template with something before {text}, or a "
        "--prompt-field");
  }
}

EncodedDocument encode_document(const Tokenizer& tokenizer, const Document& document,
                                const EncodeOptions& options) {
  const Prompted prompted = options.prompt.apply(document.prompt, document.text);
  EncodedDocument result;
  if (!options.mask_prompt) {
    result.ids = tokenizer.encode(prompted.text);
    if (options.bos) result.ids.insert(result.ids.begin(), tokenizer.bos_id());
    if (options.eos) result.ids.push_back(tokenizer.eos_id());
    return result;
  }
  const auto add = [&](int32_t id, bool is_target) {
    result.ids.push_back(id);
    result.is_target.push_back(is_target ? 1 : 0);
  };
  if (options.bos) add(tokenizer.bos_id(), false);
  for (const TokenSpan& token : tokenizer.encode_spans(prompted.text)) {
    add(token.id, token.end > prompted.text_begin || token.begin >= prompted.text_begin);
  }
  if (options.eos) add(tokenizer.eos_id(), true);
  return result;
}

}  // namespace

EncodeResult encode_corpus(const Tokenizer& tokenizer,
                           const std::vector<std::filesystem::path>& inputs,
                           const std::filesystem::path& output, const EncodeOptions& options,
                           const ProgressCallback& progress) {
  check_options(tokenizer, options);
  EncodeOptions own = options;
  own.vocab_size = tokenizer.vocab_size();
  const auto encode = [&](const Document& document) {
    return with_context(document.where(),
                        [&] { return encode_document(tokenizer, document, options); });
  };
  return run_pipeline(inputs, output, own, encode, progress);
}

namespace {

Json parse_line(const Document& line) {
  return parse_json(line.text, line.where(), {.max_bytes = kMaxDocumentBytes, .max_depth = 2});
}

std::vector<int32_t> ids_of(const Json& json, const Document& line, uint64_t vocab_size) {
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

// {"input_ids": [...], "labels": [...]}; an attention_mask may be there when it masks nothing.
EncodedDocument parse_labelled(const Document& line, uint64_t vocab_size) {
  const Json json = parse_line(line);
  JsonObject row(json, line.where());
  EncodedDocument result{ids_of(row.at("input_ids"), line, vocab_size), {}};
  const Json& labels = row.at("labels");
  if (!labels.is_array() || labels.size() != result.ids.size()) {
    row.fail("labels", "should be a list as long as input_ids");
  }
  for (const Json& label : labels) {
    const int32_t id = result.ids[result.is_target.size()];
    if (label != id && label != kHfIgnoredLabel) {
      row.fail("labels", "has " + label.dump().substr(0, 40) + " where the id is " +
                             std::to_string(id) + ", expected that id or -100");
    }
    result.is_target.push_back(label == id ? 1 : 0);
  }
  if (row.has("attention_mask")) {
    const Json& mask = row.at("attention_mask");
    const bool all =
        mask.is_array() && mask.size() == labels.size() &&
        std::all_of(mask.begin(), mask.end(), [](const Json& one) { return one == 1; });
    if (!all) row.fail("attention_mask", "masks tokens: leave padding out");
  }
  row.reject_unknown_keys();
  return result;
}

}  // namespace

std::vector<int32_t> parse_ids(const Document& line, uint64_t vocab_size) {
  return ids_of(parse_line(line), line, vocab_size);
}

EncodeResult encode_ids(const std::vector<std::filesystem::path>& inputs,
                        const std::filesystem::path& output, const EncodeOptions& options,
                        const ProgressCallback& progress) {
  if (options.vocab_size < 1 || options.vocab_size > INT32_MAX) {
    throw Error(ErrorKind::kUsage, "ids need the size of their vocabulary: --vocab-size");
  }
  if (options.mask_prompt) throw Error(ErrorKind::kUsage, "--mask-prompt needs text, not ids");
  EncodeOptions own = options;
  own.documents.format = InputFormat::kIds;
  const auto encode = [&](const Document& line) {
    EncodedDocument document = own.with_labels
                                   ? parse_labelled(line, own.vocab_size)
                                   : EncodedDocument{parse_ids(line, own.vocab_size), {}};
    if (!own.packed && document.ids.size() > own.sequence_length) {
      throw Error(ErrorKind::kCorrupt, line.where() + ": " + std::to_string(document.ids.size()) +
                                           " ids, a sequence has at most " +
                                           std::to_string(own.sequence_length) +
                                           " (--sequence-length)");
    }
    return document;
  };
  return run_pipeline(inputs, output, own, encode, progress);
}

}  // namespace xffl::tokenize
