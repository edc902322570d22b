#include "tokenizer_json.h"

#include <algorithm>
#include <array>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "characters.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/base/log.h"

namespace xffl::tokenize {
namespace {

constexpr size_t kMaxDepth = 32;
constexpr size_t kMaxKeys = 4096;  // of an object other than the vocabulary

struct TokenizerJson {
  Json rest;                                           // without model.vocab and model.merges
  std::vector<std::pair<std::string, int64_t>> vocab;  // of a model whose vocab is an object
  std::vector<std::pair<std::string, std::string>> merges;
};

// Splits the file into its parts. A vocabulary of 128,000 entries and 280,000 merges would be slow
// and large as a tree of JSON values. Therefore the parser's events inside model.vocab and
// model.merges fill lists; all other events build the tree.
class Builder final : public nlohmann::json_sax<Json> {
 public:
  Builder(TokenizerJson& file, const std::string& origin) : file_(file), origin_(origin) {}

  bool null() override { return value(nullptr); }
  bool boolean(bool x) override { return value(x); }
  bool number_integer(number_integer_t x) override { return number(x); }
  bool number_unsigned(number_unsigned_t x) override {
    return number(x > INT64_MAX ? INT64_MAX : static_cast<int64_t>(x));
  }
  bool number_float(number_float_t x, const string_t&) override { return value(x); }
  bool binary(binary_t&) override { fail("binary data"); }

  bool string(string_t& text) override {
    if (section_ != Section::kMerges) return value(std::move(text));
    depth_ == 3 ? merge_of_line(text) : pair_.push_back(std::move(text));
    return true;
  }

  bool start_object(size_t) override {
    open();
    if (section_ == Section::kTree && depth_ == 3 && path_[1] == "model" && key_ == "vocab") {
      enter(Section::kVocab);
    } else if (section_ == Section::kTree) {
      push(Json::object());
    } else if (section_ != Section::kSkipped) {
      fail("an object inside model." + list_name());
    }
    return true;
  }

  bool key(string_t& text) override {
    key_ = std::move(text);
    if (depth_ < path_.size()) path_[depth_] = key_;
    if (section_ != Section::kTree) return true;
    const Json& object = *stack_.back();
    if (object.contains(key_)) fail("the key '" + log::printable(key_, 200) + "' appears twice");
    if (object.size() >= kMaxKeys)
      fail("an object of more than " + std::to_string(kMaxKeys) + " keys");
    return true;
  }

  bool end_object() override { return close(); }

  bool start_array(size_t) override {
    open();
    const bool in_model = section_ == Section::kTree && depth_ == 3 && path_[1] == "model";
    if (in_model && (key_ == "vocab" || key_ == "merges")) {
      enter(key_ == "merges" ? Section::kMerges
                             : Section::kSkipped);  // skipped: Unigram's vocabulary
    } else if (section_ == Section::kTree) {
      push(Json::array());
    } else if (section_ == Section::kMerges && depth_ == 4) {
      pair_.clear();
    } else if (section_ != Section::kSkipped) {
      fail("a list inside model." + list_name());
    }
    return true;
  }

  bool end_array() override {
    if (section_ == Section::kMerges && depth_ == 4) {
      if (pair_.size() != 2) fail_merge(std::to_string(pair_.size()) + " parts");
      file_.merges.emplace_back(std::move(pair_[0]), std::move(pair_[1]));
    }
    return close();
  }

  bool parse_error(size_t byte, const std::string&,
                   const nlohmann::json::exception& error) override {
    fail("not JSON at byte " + std::to_string(byte) + ": " + log::printable(error.what(), 300));
  }

 private:
  enum class Section { kTree, kVocab, kMerges, kSkipped };

  [[noreturn]] void fail(const std::string& problem) const {
    throw Error(ErrorKind::kCorrupt, origin_ + ": " + problem);
  }
  [[noreturn]] void fail_merge(const std::string& found) const {
    fail("model.merges: entry " + std::to_string(file_.merges.size()) + " has " + found +
         ", expected \"a b\" or [\"a\", \"b\"]");
  }
  std::string list_name() const { return section_ == Section::kVocab ? "vocab" : "merges"; }

  void enter(Section place) {
    if (!lists_.insert(key_).second) fail("the key 'model." + key_ + "' appears twice");
    section_ = place;
  }

  void open() {
    if (++depth_ > kMaxDepth) fail("nested deeper than " + std::to_string(kMaxDepth) + " levels");
  }

  bool close() {
    --depth_;
    if (section_ == Section::kTree) {
      stack_.pop_back();
    } else if (depth_ == 2) {
      section_ = Section::kTree;  // the list that began at depth 3 has ended
    }
    return true;
  }

  void push(Json json) { stack_.push_back(&add(std::move(json))); }

  Json& add(Json json) {
    if (stack_.empty()) return file_.rest = std::move(json);
    Json& parent = *stack_.back();
    if (parent.is_object()) return parent[key_] = std::move(json);
    parent.push_back(std::move(json));
    return parent.back();
  }

  bool value(Json json) {
    if (section_ == Section::kSkipped) return true;
    if (section_ != Section::kTree) {
      fail("model." + list_name() + ": an entry is " + log::printable(json.dump(), 60));
    }
    add(std::move(json));
    return true;
  }

  bool number(int64_t x) {
    if (section_ != Section::kVocab) return value(x);
    file_.vocab.emplace_back(std::move(key_), x);
    return true;
  }

  void merge_of_line(const std::string& text) {
    const size_t space = text.find(' ');
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
      fail_merge("the text '" + log::printable(text, 100) + "'");
    }
    file_.merges.emplace_back(text.substr(0, space), text.substr(space + 1));
  }

  TokenizerJson& file_;
  const std::string& origin_;
  Section section_ = Section::kTree;
  size_t depth_ = 0;                 // open objects and lists
  std::string key_;                  // the last key
  std::array<std::string, 3> path_;  // keys that lead to the open values, by depth
  std::set<std::string> lists_;      // the lists read so far: vocab, merges
  std::vector<Json*> stack_;         // the open values of the tree
  std::vector<std::string> pair_;    // the parts of a merge that is a list
};

// Throws kCorrupt with `origin` for text that is not JSON, too deep nesting, a repeated key, an
// entry of a wrong type.
TokenizerJson split_file(std::string_view text, const std::string& origin) {
  // nlohmann's lexer takes a NUL for the end of the text and ignores the rest.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    throw Error(ErrorKind::kCorrupt,
                origin + ": not JSON at byte " + std::to_string(nul + 1) + ": a NUL");
  }
  TokenizerJson file;
  Builder builder(file, origin);
  Json::sax_parse(text, &builder);
  return file;
}

constexpr int64_t kMaxId = (int64_t{1} << 24) - 1;
// Ids may have gaps. Tables have the size of the largest id: the limit on gaps keeps a small file
// from requiring much memory.
constexpr int64_t kMaxGaps = 65536;
constexpr size_t kMaxTokenBytes = 4096;
constexpr size_t kMaxAddedTokens = 100'000;
constexpr size_t kMaxAddedBytes = size_t{4} << 20;  // total
constexpr size_t kMaxPieces = 16;                   // in a template
constexpr size_t kMaxSteps = 16;
constexpr uint64_t kMaxConfigBytes = uint64_t{8} << 20;

// The split pattern of GPT-2 and of a ByteLevel pre-tokenizer with `use_regex`.
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

using Ids = std::unordered_map<std::string_view, int32_t>;

// Reads the steps of HF's pipeline (normalizer, pre-tokenizer, model, post-processor, decoder).
// Each step is a JSON object with a "type"; one function per step accepts the known types and
// rejects all other types by name.
class Reader {
 public:
  Reader(TokenizerJson file, const std::string& origin) : file_(std::move(file)) {
    spec_.origin = origin;
  }

  BpeSpec run() {
    JsonObject top(file_.rest, spec_.origin);
    // The reader ignores "truncation" and "padding": both describe batches, which token shards
    // replace.
    JsonObject model = top.object("model");
    check_model(model);
    read_vocab();
    check_byte_tokens();
    read_merges();
    if (top.has("added_tokens")) read_added_tokens(top.at("added_tokens"));
    const Json normalizer = step_of(top, "normalizer", "normalizers"),
               pre_tokenizer = step_of(top, "pre_tokenizer", "pretokenizers"),
               decoder = step_of(top, "decoder", "decoders"),
               post_processor = step_of(top, "post_processor", "processors");
    if (decoder.is_null()) unsupported("decoder", decoder);
    if (spec_.byte_fallback) {
      if (normalizer.is_null() == pre_tokenizer.is_null())
        unsupported("byte_fallback with both a normalizer and a pre_tokenizer, or none, is");
      normalizer.is_null() ? read_metaspace(pre_tokenizer) : read_normalizer(normalizer);
      read_fallback_decoder(decoder);
    } else {
      if (!normalizer.is_null()) read_nfc(normalizer);
      if (pre_tokenizer.is_null()) unsupported("pre_tokenizer", pre_tokenizer);
      read_pre_tokenizer(pre_tokenizer);
      read_decoder(decoder);
    }
    if (!post_processor.is_null()) read_post_processor(post_processor);
    return std::move(spec_);
  }

 private:
  [[noreturn]] void corrupt(const std::string& problem) const {
    throw Error(ErrorKind::kCorrupt, spec_.origin + ": " + problem);
  }
  std::string at(const char* step) const { return spec_.origin + ": " + step; }
  /// Throws "`subject` not supported": `subject` ends in a verb.
  [[noreturn]] void unsupported(const std::string& subject) const {
    throw Error(ErrorKind::kUnsupported,
                spec_.origin + ": " + subject +
                    " not supported; supported are byte-level BPE (Llama 3, Qwen) and BPE with "
                    "byte_fallback (Llama 2). If the model has a tokenizer.model, use that file");
  }
  [[noreturn]] void unsupported(const std::string& step, const Json& found) const {
    const bool typed = found.is_object() && found.contains("type") && found["type"].is_string();
    const std::string name = typed ? "'" + found["type"].get<std::string>() + "'" : found.dump();
    unsupported(step + " " + log::printable(name, 200) + " is");
  }

  /// Null: no step, as a "Sequence" without steps is for HF (an empty decoder differs from none in
  /// HF, and xffl refuses both).
  static Json step_of(JsonObject& top, const char* key, const char* list) {
    if (!top.has(key)) return {};
    const Json& step = top.at(key);
    return step == Json{{"type", "Sequence"}, {list, Json::array()}} ? Json() : step;
  }
  /// The steps of a "Sequence", or the step itself. `where` names it in messages.
  static std::vector<Json> steps_of(const Json& json, const char* list, const std::string& where);
  static bool is_replace(const Json& json, std::string_view from, std::string_view to);

  void check_model(JsonObject& model);
  void read_vocab();
  void check_byte_tokens() const;
  void read_merges();
  void read_added_tokens(const Json& tokens);
  AddedToken read_added_token(const Json& json, size_t index) const;
  void read_pre_tokenizer(const Json& json);
  void read_split(JsonObject& step);
  void read_byte_level(JsonObject& step);
  void read_normalizer(const Json& json);
  void read_nfc(const Json& json);
  void refuse_normalized_tokens() const;
  void read_metaspace(const Json& json);
  void read_post_processor(const Json& json);
  void read_template(JsonObject& step);
  void read_decoder(const Json& json);
  void read_fallback_decoder(const Json& json);
  std::vector<std::string> byte_tokens() const;
  int32_t id_of(const std::string& token, const std::string& where) const;

  TokenizerJson file_;
  BpeSpec spec_;
  bool has_unk_ = false;  // the model has an unk_token
  Ids ids_;               // of the vocabulary
  std::unordered_map<std::string, int32_t> added_ids_;
};

std::vector<Json> Reader::steps_of(const Json& json, const char* list, const std::string& where) {
  JsonObject step(json, where);
  if (step.string("type") != "Sequence") return {json};
  const Json& steps = step.at(list);
  if (!steps.is_array() || steps.empty() || steps.size() > kMaxSteps) {
    step.fail(list, "should be a list of 1 to " + std::to_string(kMaxSteps) + " steps");
  }
  return {steps.begin(), steps.end()};
}

bool Reader::is_replace(const Json& json, std::string_view from, std::string_view to) {
  return json.is_object() && json.value("type", "") == "Replace" && json.contains("pattern") &&
         json["pattern"] == Json{{"String", from}} && json.contains("content") &&
         json["content"] == to;
}

// Reads the normalizer of a byte_fallback model: an optional Prepend, then Replace.
void Reader::read_normalizer(const Json& json) {
  std::vector<Json> steps = steps_of(json, "normalizers", at("normalizer"));
  if (JsonObject first(steps[0], at("normalizer")); first.string("type") == "Prepend") {
    if (first.string("prepend") != kSpaceMark) unsupported("normalizer", steps[0]);
    spec_.prefix = Prefix::kEach;
    steps.erase(steps.begin());
  }
  if (steps.size() != 1 || !is_replace(steps[0], " ", kSpaceMark))
    unsupported("with byte_fallback the normalizer", json);
  refuse_normalized_tokens();
}

// Reads the normalizer of a byte-level model (Qwen).
void Reader::read_nfc(const Json& json) {
  for (const Json& each : steps_of(json, "normalizers", at("normalizer")))
    if (JsonObject(each, at("normalizer")).string("type") != "NFC") unsupported("normalizer", each);
  spec_.nfc = true;
  refuse_normalized_tokens();
}

// HF would find such a token in the normalized text.
void Reader::refuse_normalized_tokens() const {
  for (const AddedToken& token : spec_.added_tokens) {
    if (token.normalized)
      unsupported("an added token that is normalized ('" + log::printable(token.content, 60) +
                  "') is");
  }
}

void Reader::read_metaspace(const Json& json) {
  JsonObject step(json, at("pre_tokenizer"));
  if (step.string("type") != "Metaspace" || step.string("replacement") != kSpaceMark ||
      step.boolean_or("split", true))
    unsupported("with byte_fallback the pre_tokenizer", json);
  const std::string scheme = step.string("prepend_scheme");
  if (scheme == "always") {
    spec_.prefix = Prefix::kMissing;
  } else if (scheme == "first") {
    spec_.prefix = Prefix::kFirst;
  } else if (scheme != "never") {
    unsupported("Metaspace's prepend_scheme '" + log::printable(scheme, 40) + "' is");
  }
}

// Reads the decoder of a byte_fallback model: Replace, ByteFallback, Fuse and an optional Strip.
void Reader::read_fallback_decoder(const Json& json) {
  const std::vector<Json> steps = steps_of(json, "decoders", at("decoder"));
  const auto is = [&](size_t i, std::string_view type) {
    return steps[i].is_object() && steps[i].value("type", "") == type;
  };
  const bool known = (steps.size() == 3 || steps.size() == 4) &&
                     is_replace(steps[0], kSpaceMark, " ") && is(1, "ByteFallback") &&
                     is(2, "Fuse");
  if (!known) unsupported("with byte_fallback the decoder", json);
  if (steps.size() == 3) return;
  JsonObject strip(steps[3], at("decoder"));
  if (!is(3, "Strip") || strip.string("content") != " " || strip.integer("start") != 1 ||
      strip.integer("stop") != 0)
    unsupported("with byte_fallback the decoder", steps[3]);
  spec_.strips_space = true;
}

void Reader::check_model(JsonObject& model) {
  const std::string type = model.string_or("type", file_.merges.empty() ? "" : "BPE");
  if (type != "BPE") unsupported("model '" + log::printable(type, 40) + "' is");
  spec_.byte_fallback = model.boolean_or("byte_fallback", false);
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!model.string_or(affix, "").empty()) unsupported(std::string("model.") + affix + " is");
  }
  if (model.number_or("dropout", 0) != 0) unsupported("model.dropout is");
  has_unk_ = model.has("unk_token");
  spec_.ignore_merges = model.boolean_or("ignore_merges", false);
  if (spec_.ignore_merges && spec_.byte_fallback)
    unsupported("model.ignore_merges with byte_fallback is");
}

// The token of each byte.
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
      corrupt(name + " has id " + std::to_string(id) + ", which another token has");
    spec_.vocab.emplace_back(std::move(token), static_cast<int32_t>(id));
  }
  for (const auto& [token, id] : spec_.vocab) {
    if (!ids_.try_emplace(token, id).second) {
      corrupt("model.vocab: '" + log::printable(token, 60) + "' appears twice");
    }
  }
}

// HF drops a byte without a token, as xffl does, or encodes it as the unk_token, which xffl does
// not.
void Reader::check_byte_tokens() const {
  if (!has_unk_ && !spec_.byte_fallback) return;
  const std::string setting = spec_.byte_fallback ? "byte_fallback" : "an unk_token";
  const std::vector<std::string> bytes = byte_tokens();
  for (size_t byte = 0; byte < bytes.size(); ++byte) {
    if (!ids_.contains(bytes[byte])) {
      unsupported("with " + setting + " a vocabulary without a token for the byte " +
                  std::to_string(byte) + " is");
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
  JsonObject token(json, at("added_tokens: entry ") + std::to_string(index));
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

// HF ignores the ids of added tokens: an added token gets its id in the vocabulary, else the next
// free id. A file with other ids is ambiguous.
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
      corrupt("added_tokens have more than " + std::to_string(kMaxAddedBytes) + " bytes in total");
    }
    spec_.added_tokens.push_back(std::move(token));
  }
}

void Reader::read_pre_tokenizer(const Json& json) {
  const std::vector<Json> steps = steps_of(json, "pretokenizers", at("pre_tokenizer"));
  for (size_t i = 0; i < steps.size(); ++i) {
    JsonObject step(steps[i], at("pre_tokenizer"));
    const std::string type = step.string("type");
    const bool last = i + 1 == steps.size();
    if ((type == "ByteLevel") != last)
      unsupported("a pre_tokenizer that does not end in ByteLevel is");
    if (type == "Split") {
      read_split(step);
    } else if (type == "Digits") {
      // HF takes the digits from Rust's tables: Unicode 16, or, in tokenizers 0.23, Unicode 17 with
      // 13 more digits.
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
    unsupported("pre_tokenizer ByteLevel with add_prefix_space after another step is");
  }
  if (step.boolean_or("use_regex", true)) spec_.split_patterns.emplace_back(kGpt2Pattern);
}

int32_t Reader::id_of(const std::string& token, const std::string& where) const {
  if (const auto added = added_ids_.find(token); added != added_ids_.end()) return added->second;
  if (const auto found = ids_.find(token); found != ids_.end()) return found->second;
  corrupt(where + " names the token '" + log::printable(token, 60) + "', which does not exist");
}

void Reader::read_post_processor(const Json& json) {
  bool found = false;
  for (const Json& each : steps_of(json, "processors", at("post_processor"))) {
    JsonObject step(each, at("post_processor"));
    const std::string type = step.string("type");
    if (type == "ByteLevel") continue;  // trims offsets, changes no token
    if (type != "TemplateProcessing" || found) unsupported("post_processor", each);
    read_template(step);
    found = true;
  }
}

// Reads "single": at most one special token before the text and one after the text.
void Reader::read_template(JsonObject& step) {
  const Json& pieces = step.at("single");
  if (!pieces.is_array() || pieces.size() > kMaxPieces)
    step.fail("single", "should be a short list");
  bool text = false;
  for (const Json& piece : pieces) {
    JsonObject one(piece, at("post_processor: single"));
    if (one.has("Sequence")) {
      if (text) unsupported("a template with the text twice is");
      text = true;
      continue;
    }
    const std::string token = one.object("SpecialToken").string("id");
    const JsonObject specials = step.object("special_tokens");
    if (!specials.has(token))
      corrupt("post_processor names '" + log::printable(token, 60) + "' without ids");
    JsonObject special(specials.json()[token], at("post_processor: special_tokens"));
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
  for (const Json& each : steps_of(json, "decoders", at("decoder"))) {
    if (JsonObject(each, at("decoder")).string("type") != "ByteLevel") {
      unsupported("decoder", each);
    }
  }
}

}  // namespace

BpeSpec read_tokenizer_json(std::string_view text, const std::string& origin) {
  return Reader(split_file(text, origin), origin).run();
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
