#include "slurm_answers.h"

#include <algorithm>
#include <charconv>

#include "xffl/base/log.h"

namespace xffl::submit {
namespace {

constexpr size_t kMaxIdDigits = 18;
constexpr size_t kMaxTextBytes = 2000;

std::optional<int64_t> read_integer(std::string_view text) {
  int64_t value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = problem == std::errc() && end == text.data() + text.size() && value >= 0;
  return whole ? std::optional(value) : std::nullopt;
}

bool is_digits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

std::string_view trim(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

/// Lines before kEndMark, without their ends; empty when there is no such mark at the end.
std::optional<std::vector<std::string_view>> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    if (end == std::string_view::npos) return std::nullopt;
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  if (lines.empty() || lines.back() != kEndMark) return std::nullopt;
  lines.pop_back();
  return lines;
}

/// `count` fields; the last one takes what is left, with any further bar in it.
std::vector<std::string_view> fields_of(std::string_view line, size_t count) {
  std::vector<std::string_view> fields;
  while (fields.size() + 1 < count) {
    const size_t bar = line.find('|');
    if (bar == std::string_view::npos) return {};
    fields.push_back(line.substr(0, bar));
    line.remove_prefix(bar + 1);
  }
  fields.push_back(line);
  return fields;
}

bool is_node_list(std::string_view text) {
  return !text.empty() && text != "(null)" && text != "None assigned";
}

Submission read_accepted(std::string_view out) {
  const std::string_view line = trim(out);
  const std::string_view id = line.substr(0, line.find(';'));  // "123;cluster"
  const std::string_view cluster = line.substr(std::min(id.size(), line.size()));
  constexpr std::string_view kName =
      ";ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
  if (!is_slurm_id(id) || cluster.find_first_not_of(kName) != std::string_view::npos) return {};
  return {Submission::Kind::kAccepted, std::string(id), {}};
}

}  // namespace

bool is_slurm_id(std::string_view text) {
  return is_digits(text) && text.size() <= kMaxIdDigits && text.front() != '0';
}

Submission read_submission(const remote::CommandResult& answer) {
  if (answer.exit_code == 0) {
    Submission submission = read_accepted(answer.out);
    if (submission.kind == Submission::Kind::kAccepted) return submission;
  }
  std::string text = answer.err;
  if (!trim(answer.out).empty()) text += "\n" + answer.out;
  std::replace(text.begin(), text.end(), '\n', ' ');
  text = log::printable(trim(text), kMaxTextBytes);
  if (text.empty()) text = "no answer, exit status " + std::to_string(answer.exit_code);
  // What reports success is no refusal, whatever else it says.
  const bool failed = answer.exit_code != 0;
  return {failed ? classify_refusal(text, answer.exit_code) : Submission::Kind::kInDoubt, {}, text};
}

std::optional<std::chrono::seconds> read_time_left(std::string_view text) {
  int64_t seconds = 0;
  if (const size_t dash = text.find('-'); dash != std::string_view::npos) {
    const auto days = read_integer(text.substr(0, dash));
    if (!days || *days > 36500) return std::nullopt;
    seconds = *days * 24;
    text.remove_prefix(dash + 1);
  }
  int parts = 0;
  for (size_t begin = 0; begin <= text.size(); ++parts) {
    const size_t end = std::min(text.find(':', begin), text.size());
    const auto part = read_integer(text.substr(begin, end - begin));
    if (!part || *part > 1'000'000 || parts > 2) return std::nullopt;
    seconds = parts == 0 && seconds > 0 ? seconds + *part : seconds * 60 + *part;
    begin = end + 1;
  }
  return parts >= 2 ? std::optional(std::chrono::seconds(seconds)) : std::nullopt;
}

std::optional<std::vector<QueueRow>> read_queue(std::string_view text) {
  const auto lines = lines_of(text);
  if (!lines || lines->empty()) return std::nullopt;
  const auto now = read_integer(lines->front());
  if (!now) return std::nullopt;
  std::vector<QueueRow> rows;
  for (size_t i = 1; i < lines->size(); ++i) {
    const auto fields = fields_of((*lines)[i], 8);
    if (fields.empty() || !is_slurm_id(fields[0])) continue;
    QueueRow row{std::string(fields[0]), std::string(fields[1]), std::string(fields[5]),
                 read_state(fields[2], fields[7]), is_node_list(fields[6])};
    if (row.status.state == JobState::kRunning) row.status.ends_in = read_time_left(fields[4]);
    const auto start = read_integer(fields[3]);
    if (row.status.state == JobState::kPending && start && *start > 0)
      row.status.starts_in = std::chrono::seconds(std::max<int64_t>(0, *start - *now));
    rows.push_back(std::move(row));
  }
  return rows;
}

std::optional<std::vector<QueueRow>> read_accounting(std::string_view text) {
  const auto lines = lines_of(text);
  if (!lines) return std::nullopt;
  std::vector<QueueRow> rows;
  for (const std::string_view line : *lines) {
    const auto fields = fields_of(line, 5);
    if (fields.empty() || !is_slurm_id(fields[0])) continue;
    QueueRow row{std::string(fields[0]), std::string(fields[1]), std::string(fields[4]),
                 read_state(fields[2], {}), is_node_list(fields[3])};
    if (row.status.state != JobState::kEnded && row.status.state != JobState::kCancelled)
      row.status.state = JobState::kUnknown;
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace xffl::submit
