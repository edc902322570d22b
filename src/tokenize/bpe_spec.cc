// How it works: every step of HF's pipeline (normalizer, pre-tokenizer, model, post-processor,
// decoder) is a JSON object with a "type". A function per step takes the types that are known and
// refuses the others by name.
#include "bpe_spec.h"

#include <unordered_map>
#include <unordered_set>

#include "bpe_steps.h"
#include "byte_level.h"
#include "code_points.h"
#include "tokenizer_json.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"

namespace xffl::tokenize {
namespace {

constexpr int64_t kMaxId = (int64_t{1} << 24) - 1;
// Ids may have gaps, but tables are as long as the largest id: a small file must not ask for much.
constexpr int64_t kMaxGaps = 65536;
constexpr size_t kMaxTokenBytes = 4096;
constexpr size_t kMaxAddedTokens = 100'000;
constexpr size_t kMaxAddedBytes = size_t{4} << 20;  // of all added tokens together
constexpr size_t kMaxPieces = 16;                   // of a template
constexpr uint64_t kMaxConfigBytes = uint64_t{8} << 20;

using Ids = std::unordered_map<std::string_view, int32_t>;

class Reader {
 public:
  Reader(TokenizerJson file, const std::string& origin) : file_(std::move(file)) {
    spec_.origin = origin;
  }

  BpeSpec run() {
    JsonObject top(file_.rest, spec_.origin);
    // What cuts and fills batches ("truncation", "padding") is not the tokenizer's: shards do that.
    JsonObject model = top.object("model");
    check_model(model);
    read_vocab();
    read_merges();
    if (top.has("added_tokens")) read_added_tokens(top.at("added_tokens"));
    if (spec_.byte_fallback) {
      read_byte_fallback_steps(file_.rest, spec_);
    } else {
      if (top.has("normalizer")) unsupported("normalizer", top.at("normalizer"));
      if (!top.has("pre_tokenizer")) unsupported("pre_tokenizer", nullptr);
      read_pre_tokenizer(top.at("pre_tokenizer"));
      read_decoder(top.has("decoder") ? top.at("decoder") : Json());
    }
    if (top.has("post_processor")) read_post_processor(top.at("post_processor"));
    return std::move(spec_);
  }

 private:
  [[noreturn]] void corrupt(const std::string& problem) const {
    throw Error(ErrorKind::kCorrupt, spec_.origin + ": " + problem);
  }
  [[noreturn]] void unsupported(const std::string& step, const Json& found) const {
    refuse_step(spec_.origin, step, found);
  }
  [[noreturn]] void unsupported(const std::string& what) const { refuse_bpe(spec_.origin, what); }

  void check_model(JsonObject& model);
  void read_vocab();
  void read_merges();
  void read_added_tokens(const Json& tokens);
  AddedToken read_added_token(const Json& json, size_t index) const;
  void read_pre_tokenizer(const Json& json);
  void read_split(JsonObject& step);
  void read_byte_level(JsonObject& step);
  void read_post_processor(const Json& json);
  void read_template(JsonObject& step);
  void read_decoder(const Json& json);
  std::vector<std::string> byte_tokens() const;
  int32_t id_of(const std::string& token, const std::string& where) const;

  TokenizerJson file_;
  BpeSpec spec_;
  Ids ids_;  // of the vocabulary
  std::unordered_map<std::string, int32_t> added_ids_;
};

void Reader::check_model(JsonObject& model) {
  const std::string type = model.string_or("type", file_.merges.empty() ? "" : "BPE");
  if (type != "BPE") unsupported("model '" + log::printable(type, 40) + "' is");
  spec_.byte_fallback = model.boolean_or("byte_fallback", false);
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!model.string_or(affix, "").empty()) unsupported(std::string("model.") + affix + " is");
  }
  if (model.number_or("dropout", 0) != 0) unsupported("model.dropout is");
  // unk_token and fuse_unk say what becomes of a byte without a token: every byte must have one.
  spec_.ignore_merges = model.boolean_or("ignore_merges", false);
  if (spec_.ignore_merges && spec_.byte_fallback)
    unsupported("model.ignore_merges with byte_fallback is");
}

// Each byte's own.
std::vector<std::string> Reader::byte_tokens() const {
  const auto alphabet = byte_level_alphabet();
  std::vector<std::string> tokens(alphabet.begin(), alphabet.end());
  for (size_t byte = 0; spec_.byte_fallback && byte < tokens.size(); ++byte)
    tokens[byte] = byte_fallback_token(static_cast<unsigned char>(byte));
  return tokens;
}

void Reader::read_vocab() {
  if (file_.vocab.empty()) corrupt("model.vocab is missing or empty");
  std::unordered_set<int64_t> seen;
  const int64_t max_id = std::min(kMaxId, 2 * static_cast<int64_t>(file_.vocab.size()) + kMaxGaps);
  for (auto& [token, id] : file_.vocab) {
    const std::string name = "model.vocab: '" + log::printable(token, 60) + "'";
    if (id < 0 || id > max_id) {
      corrupt(name + " has id " + std::to_string(id) + ", expected 0 to " + std::to_string(max_id));
    }
    if (token.size() > kMaxTokenBytes) corrupt(name + " is too long");
    if (!seen.insert(id).second)
      corrupt(name + " has id " + std::to_string(id) + ", which is another's");
    spec_.vocab.emplace_back(std::move(token), static_cast<int32_t>(id));
  }
  for (const auto& [token, id] : spec_.vocab) {
    if (!ids_.try_emplace(token, id).second) {
      corrupt("model.vocab: '" + log::printable(token, 60) + "' appears twice");
    }
  }
  const std::vector<std::string> bytes = byte_tokens();
  for (size_t byte = 0; byte < bytes.size(); ++byte) {
    if (!ids_.contains(bytes[byte])) {
      unsupported("a vocabulary without a token for the byte " + std::to_string(byte) + " is");
    }
  }
}

void Reader::read_merges() {
  spec_.merges.reserve(file_.merges.size());
  for (size_t rank = 0; rank < file_.merges.size(); ++rank) {
    const auto& [left, right] = file_.merges[rank];
    const auto id = [&](const std::string& token) {
      const auto found = ids_.find(token);
      if (found != ids_.end()) return static_cast<uint32_t>(found->second);
      corrupt("model.merges: entry " + std::to_string(rank) + " needs the token '" +
              log::printable(token, 60) + "', which is not in model.vocab");
    };
    spec_.merges.push_back({id(left), id(right), id(left + right)});
  }
}

AddedToken Reader::read_added_token(const Json& json, size_t index) const {
  JsonObject token(json, spec_.origin + ": added_tokens: entry " + std::to_string(index));
  AddedToken result;
  result.content = token.string("content");
  result.id = static_cast<int32_t>(token.integer("id", 0, kMaxId));
  result.special = token.boolean("special");
  result.single_word = token.boolean("single_word");
  result.lstrip = token.boolean("lstrip");
  result.rstrip = token.boolean("rstrip");
  result.normalized = token.boolean("normalized");
  if (result.content.empty() || result.content.size() > kMaxTokenBytes) {
    token.fail("content", "should have 1 to " + std::to_string(kMaxTokenBytes) + " bytes");
  }
  return result;
}

// HF gives a token its id in the vocabulary, else the next free one; a file that says otherwise
// would be read in two ways.
void Reader::read_added_tokens(const Json& tokens) {
  if (!tokens.is_array()) corrupt("added_tokens should be a list");
  if (tokens.size() > kMaxAddedTokens)
    corrupt("more than " + std::to_string(kMaxAddedTokens) + " added tokens");
  auto next = static_cast<int32_t>(spec_.vocab.size());
  size_t num_bytes = 0;
  for (const Json& json : tokens) {
    AddedToken token = read_added_token(json, spec_.added_tokens.size());
    const auto in_vocab = ids_.find(token.content);
    const int32_t expected = in_vocab != ids_.end() ? in_vocab->second : next;
    if (token.id != expected) {
      corrupt("added_tokens: '" + log::printable(token.content, 60) + "' has id " +
              std::to_string(token.id) + ", expected " + std::to_string(expected));
    }
    if (!added_ids_.try_emplace(token.content, token.id).second) {
      corrupt("added_tokens: '" + log::printable(token.content, 60) + "' appears twice");
    }
    next = std::max(next, token.id + 1);
    num_bytes += token.content.size();
    if (num_bytes > kMaxAddedBytes) {
      corrupt("added_tokens have more than " + std::to_string(kMaxAddedBytes) + " bytes together");
    }
    spec_.added_tokens.push_back(std::move(token));
  }
}

void Reader::read_pre_tokenizer(const Json& json) {
  const std::vector<Json> steps = steps_of(json, "pretokenizers", spec_.origin + ": pre_tokenizer");
  for (size_t i = 0; i < steps.size(); ++i) {
    JsonObject step(steps[i], spec_.origin + ": pre_tokenizer");
    const std::string type = step.string("type");
    const bool last = i + 1 == steps.size();
    if ((type == "ByteLevel") != last)
      unsupported("a pre_tokenizer that does not end in ByteLevel is");
    if (type == "Split") {
      read_split(step);
    } else if (type == "Digits") {
      // By Rust's tables, which are those of Unicode 16 or, in tokenizers 0.23, 17: 13 digits more.
      spec_.split_patterns.emplace_back(step.boolean("individual_digits") ? R"(\p{N})"
                                                                          : R"(\p{N}+)");
    } else if (type == "ByteLevel") {
      read_byte_level(step);
    } else {
      unsupported("pre_tokenizer", steps[i]);
    }
  }
}

void Reader::read_split(JsonObject& step) {
  if (step.string("behavior") != "Isolated") {
    unsupported("pre_tokenizer Split with behavior '" +
                log::printable(step.string("behavior"), 40) + "' is");
  }
  JsonObject pattern = step.object("pattern");
  if (pattern.has("Regex")) {
    spec_.split_patterns.push_back(pattern.string("Regex"));
    return;
  }
  std::string quoted;
  for (const char c : pattern.string("String")) {
    const bool plain = static_cast<unsigned char>(c) >= 0x80 || std::isalnum(c) != 0;
    quoted += plain ? std::string(1, c) : std::string("\\") + c;
  }
  spec_.split_patterns.push_back(quoted);
}

void Reader::read_byte_level(JsonObject& step) {
  spec_.add_prefix_space = step.boolean("add_prefix_space");
  if (spec_.add_prefix_space && !spec_.split_patterns.empty()) {
    unsupported("pre_tokenizer ByteLevel with add_prefix_space behind another step is");
  }
  if (step.boolean_or("use_regex", true)) spec_.split_patterns.emplace_back(kGpt2Pattern);
}

int32_t Reader::id_of(const std::string& token, const std::string& where) const {
  if (const auto added = added_ids_.find(token); added != added_ids_.end()) return added->second;
  if (const auto found = ids_.find(token); found != ids_.end()) return found->second;
  corrupt(where + " names the token '" + log::printable(token, 60) + "', which there is not");
}

void Reader::read_post_processor(const Json& json) {
  bool found = false;
  for (const Json& each : steps_of(json, "processors", spec_.origin + ": post_processor")) {
    JsonObject step(each, spec_.origin + ": post_processor");
    const std::string type = step.string("type");
    if (type == "ByteLevel") continue;  // trims offsets; no token changes
    if (type != "TemplateProcessing" || found) unsupported("post_processor", each);
    read_template(step);
    found = true;
  }
}

// "single": at most one special token before the text and one behind it.
void Reader::read_template(JsonObject& step) {
  const Json& pieces = step.at("single");
  if (!pieces.is_array() || pieces.size() > kMaxPieces)
    step.fail("single", "should be a short list");
  bool text = false;
  for (const Json& piece : pieces) {
    JsonObject one(piece, spec_.origin + ": post_processor: single");
    if (one.has("Sequence")) {
      if (text) unsupported("a template that has the text twice is");
      text = true;
      continue;
    }
    const std::string token = one.object("SpecialToken").string("id");
    const JsonObject specials = step.object("special_tokens");
    if (!specials.has(token))
      corrupt("post_processor names '" + log::printable(token, 60) + "' without ids");
    JsonObject special(specials.json()[token], spec_.origin + ": post_processor: special_tokens");
    const Json& ids = special.at("ids");
    int32_t& place = text ? spec_.eos_id : spec_.bos_id;
    if (place >= 0 || !ids.is_array() || ids.size() != 1)
      unsupported("a template of several tokens in a row is");
    place = id_of(token, "post_processor");
    if (ids[0] != place) {
      corrupt("post_processor: '" + log::printable(token, 60) + "' has ids " +
              log::printable(ids.dump(), 60) + ", expected " + std::to_string(place));
    }
  }
  if (!text) unsupported("a template without the text is");
}

void Reader::read_decoder(const Json& json) {
  if (json.is_null()) unsupported("decoder", json);
  for (const Json& each : steps_of(json, "decoders", spec_.origin + ": decoder")) {
    if (JsonObject(each, spec_.origin + ": decoder").string("type") != "ByteLevel") {
      unsupported("decoder", each);
    }
  }
}

}  // namespace

BpeSpec read_bpe_spec(std::string_view text, const std::string& origin) {
  return Reader(read_tokenizer_json(text, origin), origin).run();
}

void read_tokenizer_config(const std::filesystem::path& tokenizer_json, BpeSpec& spec) {
  const std::filesystem::path path = tokenizer_json.parent_path() / "tokenizer_config.json";
  if (!std::filesystem::exists(path)) return;
  const Json json = parse_json(read_file(path, kMaxConfigBytes), path.string());
  JsonObject config(json, path.string());
  const auto id_named_by = [&](const char* key) {
    if (!config.has(key)) return -1;
    const Json& value = config.at(key);
    const std::string content =
        value.is_object() ? JsonObject(value, path.string() + ": " + key).string("content")
                          : config.string(key);
    for (const AddedToken& token : spec.added_tokens) {
      if (token.content == content) return token.id;
    }
    for (const auto& [token, id] : spec.vocab) {
      if (token == content) return id;
    }
    throw Error(ErrorKind::kCorrupt, path.string() + ": '" + key + "' is '" +
                                         log::printable(content, 60) + "', which " + spec.origin +
                                         " does not have");
  };
  if (spec.eos_id < 0) spec.eos_id = id_named_by("eos_token");
  if (spec.bos_id < 0 && config.boolean_or("add_bos_token", false)) {
    spec.bos_id = id_named_by("bos_token");
  }
}

}  // namespace xffl::tokenize
