#include "xffl/job/job_times.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <span>
#include <utility>

#include "xffl/base/json.h"

namespace xffl::job {
namespace {

constexpr size_t kMaxStarts = 1000;
constexpr size_t kMaxWords = 16;  // of a line
constexpr size_t kMaxJobIdBytes = 100, kMaxBeatBytes = 32;
constexpr int64_t kMaxNodes = 1 << 20, kMaxRestarts = 1'000'000;

// The moments after a start, by their words in claim/times; the journal has the same keys.
using Moment = std::pair<std::string_view, std::optional<int64_t> JobStart::*>;
constexpr std::array kMoments{
    Moment{"train", &JobStart::train},     Moment{"trained", &JobStart::trained},
    Moment{"offered", &JobStart::offered}, Moment{"handed_over", &JobStart::handed_over},
    Moment{"end", &JobStart::end},
};

std::optional<int64_t> parse_integer(std::string_view text, int64_t max) {
  int64_t value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_whole = problem == std::errc() && end == text.data() + text.size();
  return is_whole && value >= 0 && value <= max ? std::optional(value) : std::nullopt;
}

void parse_integer(std::string_view text, int64_t max, int& out) {
  if (const auto value = parse_integer(text, max)) out = static_cast<int>(*value);
}

bool is_plain(std::string_view text, size_t max_bytes) {
  return !text.empty() && text.size() <= max_bytes &&
         text.find_first_not_of(
             "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") ==
             std::string_view::npos &&
         text.front() != '.' && text.front() != '-';
}

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  while (!line.empty() && words.size() < kMaxWords) {
    const size_t end = std::min(line.find(' '), line.size());
    if (end > 0) words.push_back(line.substr(0, end));
    line.remove_prefix(std::min(end + 1, line.size()));
  }
  return words;
}

void read_value(std::string_view word, JobStart& start) {
  const size_t sign = word.find('=');
  if (sign == std::string_view::npos) return;
  const std::string_view key = word.substr(0, sign), value = word.substr(sign + 1);
  if (key == "job" && is_plain(value, kMaxJobIdBytes)) start.job = value;
  if (key == "beat" && is_plain(value, kMaxBeatBytes)) start.beat = value;
  if (key == "restart") parse_integer(value, kMaxRestarts, start.restart);
  if (key == "handover") parse_integer(value, kMaxRestarts, start.handover);
  if (key == "nodes") parse_integer(value, kMaxNodes, start.nodes);
}

void read_line(std::string_view line, std::vector<JobStart>& starts) {
  const std::vector<std::string_view> words = words_of(line);
  if (words.size() < 2) return;
  const auto time = parse_integer(words[1], kMaxUnixTime);
  if (!time) return;
  if (words[0] == "start") {
    if (starts.size() > kMaxStarts) return;
    JobStart& start = starts.emplace_back();
    start.start = *time;
    for (const std::string_view word : std::span(words).subspan(2)) read_value(word, start);
    return;
  }
  if (starts.empty()) return;
  for (const auto& [word, member] : kMoments)
    if (words[0] == word) starts.back().*member = time;
  if (words[0] == "trained" && words.size() > 2)
    if (const auto status = parse_integer(words[2], 255))
      starts.back().status = static_cast<int>(*status);
}

}  // namespace

std::optional<WorkEnd> end_of_work(const JobStart& start, std::optional<double> report_seconds) {
  for (const std::optional<int64_t>& moment : {start.offered, start.end, start.trained})
    if (moment) return WorkEnd{static_cast<double>(*moment)};
  if (report_seconds)
    return WorkEnd{static_cast<double>(start.train.value_or(start.start)) + *report_seconds};
  if (start.last_beat) return WorkEnd{static_cast<double>(*start.last_beat), true};
  return std::nullopt;
}

std::vector<JobStart> parse_job_times(std::string_view text) {
  std::vector<JobStart> starts;
  // A last line without a newline may be half a line.
  for (size_t end = text.find('\n'); end != std::string_view::npos; end = text.find('\n')) {
    read_line(text.substr(0, end), starts);
    text.remove_prefix(end + 1);
  }
  // One start above the limit has taken the moments of all dropped starts.
  if (starts.size() > kMaxStarts) starts.pop_back();
  return starts;
}

std::string format_job_usage(const JobUsage& usage) {
  Json json = Json::object();
  if (usage.clock_offset) json["clock_offset"] = *usage.clock_offset;
  if (usage.clock_error) json["clock_error"] = *usage.clock_error;
  Json& starts = json["starts"] = Json::array();
  for (const JobStart& start : usage.starts) {
    Json& item = starts.emplace_back(Json::object());
    item["job"] = start.job;
    if (start.restart > 0) item["restart"] = start.restart;
    if (start.handover > 0) item["handover"] = start.handover;
    item["nodes"] = start.nodes;
    if (!start.beat.empty()) item["beat"] = start.beat;
    item["start"] = start.start;
    for (const auto& [key, member] : kMoments)
      if (const auto& time = start.*member) item[std::string(key)] = *time;
    if (start.last_beat) item["last_beat"] = *start.last_beat;
    if (start.status) item["status"] = *start.status;
  }
  return json.dump();
}

JobUsage parse_job_usage(std::string_view json, std::string_view origin) {
  const Json document =
      parse_json(json, origin, {.max_bytes = 16 * kMaxTimesBytes, .max_depth = 4});
  JsonObject object(document, std::string(origin));
  JobUsage usage;
  const auto read_offset = [&](std::string_view key, std::optional<double>& out, double min) {
    if (!object.has(key)) return;
    out = object.number(key);
    if (*out < min || *out > kMaxClockOffset) object.fail(key, "is out of range");
  };
  read_offset("clock_offset", usage.clock_offset, -kMaxClockOffset);
  read_offset("clock_error", usage.clock_error, 0);
  const Json& starts = object.at("starts");
  if (!starts.is_array() || starts.size() > kMaxStarts)
    object.fail("starts", "should be a list of at most 1000 starts");
  for (const Json& item : starts) {
    JsonObject each(item, std::string(origin) + ": starts");
    JobStart& start = usage.starts.emplace_back();
    start.job = each.string("job");
    start.restart = static_cast<int>(each.integer_or("restart", 0, 0, kMaxRestarts));
    start.handover = static_cast<int>(each.integer_or("handover", 0, 0, kMaxRestarts));
    start.nodes = static_cast<int>(each.integer("nodes", 0, kMaxNodes));
    start.beat = each.string_or("beat", "");
    start.start = each.integer("start", 0, kMaxUnixTime);
    const auto read_time = [&](std::string_view key, std::optional<int64_t>& out) {
      if (each.has(key)) out = each.integer(key, 0, kMaxUnixTime);
    };
    for (const auto& [key, member] : kMoments) read_time(key, start.*member);
    read_time("last_beat", start.last_beat);
    if (each.has("status")) start.status = static_cast<int>(each.integer("status", 0, 255));
  }
  return usage;
}

}  // namespace xffl::job
