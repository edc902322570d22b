#include "sorted_json.h"

#include <set>
#include <string>
#include <vector>

#include "xffl/base/error.h"
#include "xffl/base/log.h"

namespace xffl::checkpoint {
namespace {

[[noreturn]] void fail(std::string_view origin, const std::string& problem) {
  throw Error(ErrorKind::kCorrupt, std::string(origin) + ": " + problem);
}

}  // namespace

SortedJson parse_sorted_json(std::string_view text, std::string_view origin, JsonLimits limits) {
  if (text.size() > limits.max_bytes) {
    fail(origin, "expected at most " + std::to_string(limits.max_bytes) + " bytes of JSON, found " +
                     std::to_string(text.size()));
  }
  // The parser would take a NUL for the end of the text and never look at the rest.
  if (text.find('\0') != std::string_view::npos) fail(origin, "not JSON: it has a NUL byte");
  using Event = SortedJson::parse_event_t;
  std::vector<std::set<std::string, std::less<>>> keys;  // of the objects that are open
  const auto guard = [&](int depth, Event event, SortedJson& parsed) {
    const bool opens = event == Event::object_start || event == Event::array_start;
    if (opens && depth >= limits.max_depth) {
      fail(origin, "JSON nested deeper than " + std::to_string(limits.max_depth) + " levels");
    }
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys.back().insert(key).second) {
        fail(origin, "the key '" + log::printable(key, 200) + "' appears twice");
      }
    }
    return true;
  };
  try {
    return SortedJson::parse(text, guard);
  } catch (const SortedJson::exception& error) {
    fail(origin, "not JSON: " + log::printable(error.what(), 300));
  }
}

}  // namespace xffl::checkpoint
