// How it works: nlohmann's parser calls the builder below for each token, and the builder keeps the
// path of open containers. (nlohmann's own callback parser walks a whole object at the end of each
// of its children, which takes quadratic time.)
#include "sorted_json.h"

#include <string>
#include <utility>
#include <vector>

#include "xffl/base/error.h"
#include "xffl/base/log.h"

namespace xffl::checkpoint {
namespace {

class Builder final : public nlohmann::json_sax<SortedJson> {
 public:
  Builder(std::string_view origin, JsonLimits limits, size_t max_keys)
      : origin_(origin), limits_(limits), max_keys_(max_keys) {}

  SortedJson take() { return std::move(root_); }
  [[noreturn]] void fail(const std::string& problem) const {
    throw Error(ErrorKind::kCorrupt, std::string(origin_) + ": " + problem);
  }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { fail("not JSON"); }
  bool start_object(size_t) override { return open(SortedJson::object()); }
  bool end_object() override { return close(); }
  bool start_array(size_t) override { return open(SortedJson::array()); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    auto& object = open_.back()->get_ref<SortedJson::object_t&>();
    const auto [it, added] = object.emplace(std::move(name), nullptr);
    if (!added) fail("the key '" + log::printable(it->first, 200) + "' appears twice");
    if (object.size() > max_keys_) {
      fail("an object has more than " + std::to_string(max_keys_) + " keys");
    }
    value_ = &it->second;
    return true;
  }

  bool parse_error(size_t, const std::string&, const SortedJson::exception& error) override {
    fail("not JSON: " + log::printable(error.what(), 300));
  }

 private:
  /// Adds a value to the innermost open container; returns the value's address, valid until the
  /// next value is added to that container.
  SortedJson& place(SortedJson value) {
    if (open_.empty()) return root_ = std::move(value);
    if (open_.back()->is_object()) return *value_ = std::move(value);
    auto& array = open_.back()->get_ref<SortedJson::array_t&>();
    array.push_back(std::move(value));
    return array.back();
  }

  bool add(SortedJson value) {
    place(std::move(value));
    return true;
  }

  bool open(SortedJson container) {
    if (std::cmp_greater_equal(open_.size(), limits_.max_depth)) {
      fail("JSON nested deeper than " + std::to_string(limits_.max_depth) + " levels");
    }
    open_.push_back(&place(std::move(container)));
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  std::string_view origin_;
  JsonLimits limits_;
  size_t max_keys_;
  SortedJson root_;
  std::vector<SortedJson*> open_;  // the containers around the next token
  SortedJson* value_ = nullptr;    // the value of the last key
};

}  // namespace

SortedJson parse_sorted_json(std::string_view text, std::string_view origin, JsonLimits limits,
                             size_t max_keys) {
  Builder builder(origin, limits, max_keys);
  if (text.size() > limits.max_bytes) {
    builder.fail("expected at most " + std::to_string(limits.max_bytes) + " bytes of JSON, found " +
                 std::to_string(text.size()));
  }
  // The parser takes a NUL for the end of the text and ignores the rest.
  if (text.find('\0') != std::string_view::npos) builder.fail("not JSON: it has a NUL byte");
  SortedJson::sax_parse(text, &builder);
  return builder.take();
}

}  // namespace xffl::checkpoint
