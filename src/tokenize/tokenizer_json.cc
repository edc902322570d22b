// How it works: the parser reports what it reads, one event after the other. Outside of model.vocab
// and model.merges the events build the tree; inside they fill the lists.
#include "tokenizer_json.h"

#include <array>
#include <set>

#include "xffl/base/error.h"
#include "xffl/base/log.h"

namespace xffl::tokenize {
namespace {

constexpr size_t kMaxDepth = 32;
constexpr size_t kMaxKeys = 4096;  // of an object other than the vocabulary

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
    if (place_ != Place::kMerges) return value(std::move(text));
    depth_ == 3 ? merge_of_line(text) : pair_.push_back(std::move(text));
    return true;
  }

  bool start_object(size_t) override {
    open();
    if (place_ == Place::kTree && depth_ == 3 && path_[1] == "model" && key_ == "vocab") {
      enter(Place::kVocab);
      file_.vocab_is_object = true;
    } else if (place_ == Place::kTree) {
      push(Json::object());
    } else if (place_ != Place::kSkipped) {
      fail("an object inside model." + list_name());
    }
    return true;
  }

  bool key(string_t& text) override {
    key_ = std::move(text);
    if (depth_ < path_.size()) path_[depth_] = key_;
    if (place_ != Place::kTree) return true;
    const Json& object = *stack_.back();
    if (object.contains(key_)) fail("the key '" + log::printable(key_, 200) + "' appears twice");
    if (object.size() >= kMaxKeys)
      fail("an object of more than " + std::to_string(kMaxKeys) + " keys");
    return true;
  }

  bool end_object() override { return close(); }

  bool start_array(size_t) override {
    open();
    const bool in_model = place_ == Place::kTree && depth_ == 3 && path_[1] == "model";
    if (in_model && (key_ == "vocab" || key_ == "merges")) {
      enter(key_ == "merges" ? Place::kMerges : Place::kSkipped);  // skipped: Unigram's vocabulary
    } else if (place_ == Place::kTree) {
      push(Json::array());
    } else if (place_ == Place::kMerges && depth_ == 4) {
      pair_.clear();
    } else if (place_ != Place::kSkipped) {
      fail("a list inside model." + list_name());
    }
    return true;
  }

  bool end_array() override {
    if (place_ == Place::kMerges && depth_ == 4) {
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
  enum class Place { kTree, kVocab, kMerges, kSkipped };

  [[noreturn]] void fail(const std::string& problem) const {
    throw Error(ErrorKind::kCorrupt, origin_ + ": " + problem);
  }
  [[noreturn]] void fail_merge(const std::string& found) const {
    fail("model.merges: entry " + std::to_string(file_.merges.size()) + " has " + found +
         ", expected \"a b\" or [\"a\", \"b\"]");
  }
  std::string list_name() const { return place_ == Place::kVocab ? "vocab" : "merges"; }

  void enter(Place place) {
    if (!lists_.insert(key_).second) fail("the key 'model." + key_ + "' appears twice");
    place_ = place;
  }

  void open() {
    if (++depth_ > kMaxDepth) fail("nested deeper than " + std::to_string(kMaxDepth) + " levels");
  }

  bool close() {
    --depth_;
    if (place_ == Place::kTree) {
      stack_.pop_back();
    } else if (depth_ == 2) {
      place_ = Place::kTree;  // the list that began at depth 3 has ended
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
    if (place_ == Place::kSkipped) return true;
    if (place_ != Place::kTree) {
      fail("model." + list_name() + ": an entry is " + log::printable(json.dump(), 60));
    }
    add(std::move(json));
    return true;
  }

  bool number(int64_t x) {
    if (place_ != Place::kVocab) return value(x);
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
  Place place_ = Place::kTree;
  size_t depth_ = 0;                 // open objects and lists
  std::string key_;                  // the last one read
  std::array<std::string, 3> path_;  // keys that lead to the open values, by depth
  std::set<std::string> lists_;      // vocab, merges: those that were there
  std::vector<Json*> stack_;         // the open values of the tree
  std::vector<std::string> pair_;    // of a merge that is a list
};

}  // namespace

TokenizerJson read_tokenizer_json(std::string_view text, const std::string& origin) {
  // nlohmann's lexer takes a NUL for the end and would accept anything behind it.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    throw Error(ErrorKind::kCorrupt,
                origin + ": not JSON at byte " + std::to_string(nul + 1) + ": a NUL");
  }
  TokenizerJson file;
  Builder builder(file, origin);
  Json::sax_parse(text, &builder);
  return file;
}

}  // namespace xffl::tokenize
