#include "queue_answers.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>

#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/base/utf8.h"

namespace xffl::submit {
namespace {

constexpr size_t kMaxMessageBytes = 2000;
constexpr size_t kMaxIdDigits = 18;

// When the connection ends early, the command sees the end of its input, and would submit the part
// of the script that has arrived. $1 is the size of the script. The queue manager creates the job's
// output file with this umask.
constexpr const char* kSubmit = R"sh(umask 077
script=$(cat && echo .)
[ "${#script}" -eq $(($1 + 1)) ] || { echo "the script did not arrive whole" >&2; exit 1; }
shift
printf %s "${script%.}" | "$@"
)sh";

// Exhausted limits, or a failing file system.
constexpr auto kLoginNodeFailures = std::to_array<std::string_view>({
    "too many open files",
    "too many users",
    "stale file handle",
    "stale nfs file handle",
    "input/output error",
    "device or resource busy",
    "no buffer space available",
    "cannot fork",
    "fork:",  // a shell's, "bash: fork: retry: Resource temporarily unavailable"
    "error while loading shared libraries",
});

bool has_line(std::string_view text, const std::function<bool(std::string_view line)>& is_wanted) {
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    if (is_wanted(without_blanks(text.substr(0, end)))) return true;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return false;
}

std::optional<int64_t> number_at(std::string_view text, size_t begin, size_t digits) {
  return begin + digits <= text.size() ? read_integer(text.substr(begin, digits)) : std::nullopt;
}

std::optional<int64_t> seconds_of(int64_t year, unsigned month, int64_t day, int64_t hour,
                                  int64_t minute, int64_t second) {
  const std::chrono::year_month_day date{std::chrono::year(static_cast<int>(year)),
                                         std::chrono::month(month),
                                         std::chrono::day(static_cast<unsigned>(day))};
  if (year < 1970 || year > 9999 || day > 31 || !date.ok() || hour > 23 || minute > 59 ||
      second > 60)
    return std::nullopt;
  const auto days = std::chrono::sys_days(date).time_since_epoch().count();
  return ((days * 24 + hour) * 60 + minute) * 60 + second;
}

}  // namespace

std::vector<std::string> clean_environment(std::span<const std::string_view> variables) {
  std::vector<std::string> argv{"env"};
  for (const std::string_view variable : variables) {
    argv.emplace_back("-u");
    argv.emplace_back(variable);
  }
  argv.emplace_back("LC_ALL=C");
  return argv;
}

void append(std::vector<std::string>& argv, std::vector<std::string> more) {
  for (std::string& argument : more) argv.push_back(std::move(argument));
}

void append_submission(std::vector<std::string>& argv, std::string_view script,
                       std::vector<std::string> submit) {
  append(argv, {"sh", "-c", kSubmit, "sh", std::to_string(script.size())});
  append(argv, std::move(submit));
}

std::vector<std::string> words_of(const std::vector<std::string>& options) {
  std::vector<std::string> words;
  for (const std::string& option : options)
    for (size_t begin = 0; begin <= option.size();) {
      const size_t end = std::min(option.find(' ', begin), option.size());
      words.push_back(option.substr(begin, end - begin));
      begin = end + 1;
    }
  return words;
}

void check_directive_word(std::string_view key, std::string_view value) {
  constexpr std::string_view kCharacters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.,:/@%+&|*()[]=-";
  if (value.empty() || value.front() == '-' ||
      value.find_first_not_of(kCharacters) != std::string_view::npos)
    throw Error(ErrorKind::kConfig, std::string(key) + " is '" + log::printable(value, 200) +
                                        "', which cannot be one word of a directive of the job "
                                        "script");
}

std::optional<std::vector<std::string_view>> lines_of(std::string_view text, size_t max_lines) {
  std::vector<std::string_view> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    if (end == std::string_view::npos || lines.size() > max_lines) return std::nullopt;
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  if (lines.empty() || lines.back() != kEndMark) return std::nullopt;
  lines.pop_back();
  return lines;
}

std::optional<int64_t> read_queue_clock(std::string_view text) {
  constexpr int64_t kMaxTime = 100'000'000'000;  // the year 5138
  const size_t end = text.find('\n');
  const auto time =
      end == std::string_view::npos ? std::nullopt : read_integer(text.substr(0, end));
  return time && *time <= kMaxTime ? time : std::nullopt;
}

std::optional<int64_t> read_iso_time(std::string_view text) {
  constexpr std::string_view kShape = "0000-00-00T00:00:00";
  if (text.size() < kShape.size()) return std::nullopt;
  for (size_t i = 0; i < kShape.size(); ++i)
    if (kShape[i] != '0' && text[i] != kShape[i]) return std::nullopt;
  const auto year = number_at(text, 0, 4), month = number_at(text, 5, 2),
             day = number_at(text, 8, 2), hour = number_at(text, 11, 2),
             minute = number_at(text, 14, 2), second = number_at(text, 17, 2);
  if (!year || !month || !day || !hour || !minute || !second) return std::nullopt;
  return seconds_of(*year, static_cast<unsigned>(*month), *day, *hour, *minute, *second);
}

std::optional<int64_t> read_ctime(std::string_view text) {
  constexpr std::string_view kMonths = "JanFebMarAprMayJunJulAugSepOctNovDec";
  if (text.size() != 24) return std::nullopt;
  const size_t month = kMonths.find(text.substr(4, 3));
  const auto day = read_integer(without_blanks(text.substr(8, 2)));
  const auto hour = number_at(text, 11, 2), minute = number_at(text, 14, 2),
             second = number_at(text, 17, 2), year = number_at(text, 20, 4);
  if (month == std::string_view::npos || month % 3 != 0 || !day || !hour || !minute || !second ||
      !year)
    return std::nullopt;
  return seconds_of(*year, static_cast<unsigned>(month / 3 + 1), *day, *hour, *minute, *second);
}

std::optional<int64_t> read_integer(std::string_view text) {
  int64_t value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = problem == std::errc() && end == text.data() + text.size() && value >= 0;
  return whole ? std::optional(value) : std::nullopt;
}

std::string_view without_blanks(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

bool contains_any(std::string_view text, std::span<const std::string_view> parts) {
  return std::any_of(parts.begin(), parts.end(), [&](std::string_view part) {
    return text.find(part) != std::string_view::npos;
  });
}

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return log::printable(text, 500);
}

std::string failure_of(const remote::CommandResult& answer) {
  return "exit status " + std::to_string(answer.exit_code) + ": " +
         one_line(answer.err.empty() ? answer.out : answer.err);
}

bool is_plain_name(std::string_view name) {
  return !name.empty() && name.front() != '-' &&
         name.find_first_not_of(
             "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-") ==
             std::string_view::npos;
}

bool is_no_command(int exit_code) { return exit_code == 126 || exit_code == 127; }

bool is_decimal_id(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos &&
         text.size() <= kMaxIdDigits && text.front() != '0';
}

std::string submission_message(const remote::CommandResult& answer) {
  std::string text = answer.err;
  if (!without_blanks(answer.out).empty()) text += "\n" + answer.out;
  std::replace(text.begin(), text.end(), '\n', ' ');
  text = log::printable(without_blanks(text), kMaxMessageBytes);
  if (text.empty()) text = "no answer, exit status " + std::to_string(answer.exit_code);
  return text;
}

bool is_login_node_failure(std::string_view lower_case_message) {
  return contains_any(lower_case_message, kLoginNodeFailures);
}

Submission::Kind classify_rejection(std::string_view text, int exit_code,
                                    const RejectionWords& words) {
  const std::string lower = ascii_lower_case(text);
  // On a login node a file system may be absent, or a limit may be reached, for a while.
  if (is_no_command(exit_code)) return Submission::Kind::kUnknown;
  if (contains_any(lower, words.unknown) || is_login_node_failure(lower))
    return Submission::Kind::kUnknown;
  if (contains_any(lower, words.temporary)) return Submission::Kind::kDeferred;
  if (contains_any(lower, words.permanent)) return Submission::Kind::kRejected;
  return Submission::Kind::kUnknown;
}

Submission rejected_submission(const remote::CommandResult& answer, const RejectionWords& words,
                               const std::function<bool(std::string_view line)>& is_id) {
  const std::string text = submission_message(answer);
  const bool failed = answer.exit_code != 0 && !has_line(answer.out, is_id);
  const auto kind =
      failed ? classify_rejection(text, answer.exit_code, words) : Submission::Kind::kUnknown;
  return {kind, {}, text};
}

void throw_rejected(std::string_view title, const Submission& submission, const std::string& name) {
  const std::string manager(title);
  switch (submission.kind) {
    case Submission::Kind::kRejected:
      throw Error(ErrorKind::kConfig, manager + " rejected job " + name + ": " + submission.text);
    case Submission::Kind::kDeferred:
      throw Error(ErrorKind::kBusy,
                  manager + " does not accept job " + name + " now: " + submission.text);
    default:
      throw Error(ErrorKind::kRemote, "it is unknown whether " + manager + " accepted job " + name +
                                          ": " + submission.text);
  }
}

}  // namespace xffl::submit
