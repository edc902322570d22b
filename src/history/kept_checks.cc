#include "xffl/history/kept_checks.h"

#include <algorithm>

#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"

namespace xffl::history {
namespace {

constexpr uint64_t kMaxBytes = 1u << 20;
constexpr std::string_view kNotMade = "not checked";

Json json_of(const KeptCheck& check) {
  return {{"check", check.name},        {"content", check.content},
          {"result", check.result},     {"checked_at", check.checked_at},
          {"events", check.events},     {"last_event_at", check.last_event_at},
          {"passed", check.passed},     {"failed", check.failed},
          {"failures", check.failures}, {"not_checked", check.not_checked}};
}

KeptCheck check_of(const Json& json, const std::string& where) {
  JsonObject object(json, where);
  KeptCheck check;
  check.name = object.string("check");
  check.content = object.string("content");
  check.result = object.string("result");
  if (check.result != "ok" && check.result != "failed" && check.result != kNotMade)
    object.fail("result", "expected ok, failed or not checked");
  check.checked_at = object.string("checked_at");
  check.events = object.integer("events", 0);
  check.last_event_at = object.string("last_event_at");
  check.passed = object.integer("passed", 0);
  check.failed = object.integer("failed", 0);
  check.failures = object.strings("failures");
  check.not_checked = object.strings("not_checked");
  return check;
}

}  // namespace

std::vector<KeptCheck> merged(std::vector<KeptCheck> earlier, const std::vector<KeptCheck>& newer) {
  for (const KeptCheck& check : newer) {
    const auto found = std::find_if(earlier.begin(), earlier.end(),
                                    [&](const KeptCheck& one) { return one.name == check.name; });
    if (found == earlier.end())
      earlier.push_back(check);
    else if (check.result != kNotMade || found->result == kNotMade)
      *found = check;
  }
  return earlier;
}

std::string format_kept_checks(const std::vector<KeptCheck>& checks) {
  Json json{{"schema", 1}, {"checks", Json::array()}};
  for (const KeptCheck& check : checks) json["checks"].push_back(json_of(check));
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::vector<KeptCheck> parse_kept_checks(std::string_view text, std::string_view origin) {
  const Json json = parse_json(text, origin, {.max_bytes = kMaxBytes, .max_depth = 6});
  JsonObject object(json, std::string(origin));
  object.integer("schema", 1, 1);
  const Json& list = object.at("checks");
  if (!list.is_array()) object.fail("checks", "expected a list");
  std::vector<KeptCheck> checks;
  for (const Json& each : list)
    checks.push_back(
        check_of(each, std::string(origin) + ": check " + std::to_string(checks.size() + 1)));
  return checks;
}

std::vector<KeptCheck> read_kept_checks(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) return {};
  return parse_kept_checks(read_file(path, kMaxBytes), path.string());
}

}  // namespace xffl::history
