#include "xffl/status/frame.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string_view>

#include "status_parts.h"
#include "xffl/base/log.h"
#include "xffl/base/text_width.h"

namespace xffl::status {
namespace {

// ECMA-48 escapes; mode 2026 is the terminals' common convention for synchronized updates.
constexpr std::string_view kBeginUpdate = "\033[?2026h", kEndUpdate = "\033[?2026l";
constexpr std::string_view kHome = "\033[H", kEraseLine = "\033[K", kEraseBelow = "\033[J";
constexpr std::string_view kBold = "\033[1m", kYellow = "\033[33m\033[1m", kPlain = "\033[m";

constexpr size_t kWidestCell = 20;
constexpr size_t kGap = 2;  // columns between two cells

// "14:03:10"; "11-21 14:03" on another day than `now`. Empty for text that is no time.
std::string clock_time(const std::string& time_utc, Clock::UtcTime now) {
  if (!parse_utc(time_utc)) return "";
  const std::string today = format_utc(now);  // 2026-11-23T14:03:10.000Z
  if (time_utc.substr(0, 10) == today.substr(0, 10)) return time_utc.substr(11, 8);
  return time_utc.substr(5, 5) + " " + time_utc.substr(11, 5);
}

std::string number(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

// Splits an activity into its state and the rest: "running, time limit in 3 h".
void split_activity(const std::string& activity, FrameRow& row) {
  constexpr auto kTwoWords =
      std::to_array<std::string_view>({"needs you", "not started", "submission unknown"});
  size_t end = activity.find_first_of(" ,(:");
  for (const std::string_view words : kTwoWords)
    if (activity.starts_with(words)) end = words.size();
  row.state = activity.substr(0, end);
  const size_t rest = end == std::string::npos ? end : activity.find_first_not_of(" ,:", end);
  if (rest != std::string::npos) row.detail = activity.substr(rest);
}

FrameRow row_of(const RunStatus& status, int round, const FacilityName& name,
                const history::FacilityState& facility, Clock::UtcTime now) {
  FrameRow row;
  row.name = name.str();
  split_activity(activity_of(status, round, name, facility), row);
  const history::Attempt* attempt = facility.current();
  const int attempt_number = attempt == nullptr ? 0 : attempt->number;
  row.number = std::to_string(round) + "/" + std::to_string(attempt_number);
  if (attempt != nullptr) row.job = log::printable(attempt->job_id, 64);
  const auto live = status.live.find(name);
  const bool is_live = live != status.live.end() && live->second.round == round;
  if (facility.accepted) {
    const job::JobReport& report = facility.accepted->report;
    row.since = clock_time(facility.accepted->time_utc, now);
    row.step = report.steps > 0 ? std::to_string(report.steps) : "";
    row.loss = report.steps > 0 ? number("%.4f", report.train_loss) : "";
  } else if (is_live && !facility.missing) {
    row.since = clock_time(live->second.since_utc, now);
    const auto& training = live->second.training;
    if (training && training->attempt == attempt_number) {
      row.step = std::to_string(training->step) + "/" + std::to_string(training->steps);
      row.loss = number(std::abs(training->loss) < 1e6 ? "%.4f" : "%.3g", training->loss);
    }
  }
  std::string why;
  if (facility.missing)
    why = *facility.missing;
  else if (attempt != nullptr && attempt->failure && !is_live)
    why = *attempt->failure;
  if (!why.empty()) row.detail = log::printable(why, 300);
  row.urgent = facility.missing.has_value() || row.state == "failed" || row.state == "paused" ||
               row.state == "needs you";
  const auto paused = status.run_state.paused.find(name);
  if (paused != status.run_state.paused.end()) {
    row.detail = "PAUSED (" + log::printable(paused->second, 100) + ") " + row.detail;
    row.urgent = true;
  }
  const auto left = status.run_state.left.find(name);
  if (left != status.run_state.left.end())
    row.detail = "LEAVES (" + log::printable(left->second.reason, 100) + ") " + row.detail;
  return row;
}

std::string next_event(const RunStatus& status) {
  if (status.state != "running") {
    if (status.state != "stopped") return "the run is " + status.state;
    return "continue with: " + continue_command(status);
  }
  const history::RunState& run = status.run_state;
  if (run.rounds.empty()) return "next: round 1";
  const auto& [number, round] = *run.rounds.rbegin();
  const std::string of_round = " of round " + std::to_string(number);
  if (round.published)
    return number < status.rounds_planned && !run.stop_rule
               ? "next: round " + std::to_string(number + 1)
               : "next: the end of the run";
  if (!round.model_sha256.empty()) return "next: publication" + of_round;
  std::string waiting;
  if (round.participants.empty())
    for (const auto& [name, facility] : round.facilities)
      if (!facility.accepted && !facility.missing)
        waiting += (waiting.empty() ? "" : ", ") + name.str();
  if (round.evaluates) return "next: measurement of " + (waiting.empty() ? "the model" : waiting);
  return waiting.empty() ? "next: the mean" + of_round : "next: update of " + waiting;
}

using Cells = std::array<std::string, 7>;

Cells cells_of(const FrameRow& row) {
  return {row.name, row.state, row.since, row.number, row.job, row.step, row.loss};
}

const Cells kTitles = {"facility", "state", "since", "round", "job", "step", "loss"};

// The rows as lines of a table, below its titles. A column without content is left out.
std::vector<std::string> table(const std::vector<FrameRow>& rows) {
  Cells titles = kTitles;
  std::array<size_t, std::tuple_size_v<Cells>> widths{};
  for (const FrameRow& row : rows) {
    const Cells cells = cells_of(row);
    for (size_t i = 0; i < cells.size(); ++i)
      widths[i] = std::max(widths[i], std::min(display_width(cells[i]), kWidestCell));
  }
  for (size_t i = 0; i < widths.size(); ++i)
    if (widths[i] > 0) widths[i] = std::max(widths[i], display_width(titles[i]));
  const auto line = [&](const Cells& cells, const std::string& detail) {
    std::string text;
    for (size_t i = 0; i < cells.size(); ++i)
      if (widths[i] > 0) text += fill_to_width(cells[i], widths[i]) + std::string(kGap, ' ');
    text += detail;
    text.resize(text.find_last_not_of(' ') + 1);
    return text;
  };
  std::vector<std::string> lines = {line(titles, "")};
  for (const FrameRow& row : rows) lines.push_back(line(cells_of(row), row.detail));
  return lines;
}

// `text` within `columns`, with an escape that takes no column.
std::string line_of(const std::string& text, size_t columns, std::string_view colour) {
  std::string line(cut_to_width(text, columns));
  return colour.empty() ? line : std::string(colour) + line + std::string(kPlain);
}

std::string last_line(const Frame& frame, size_t columns) {
  const std::string updated = "updated " + frame.updated;
  if (columns <= display_width(updated) + kGap) return std::string(cut_to_width(updated, columns));
  const size_t left = columns - display_width(updated) - kGap;
  return std::string(cut_to_width(frame.next, left)) + std::string(kGap, ' ') + updated;
}

}  // namespace

bool Frame::shows_same_as(const Frame& other) const {
  return head == other.head && notes == other.notes && rows == other.rows && next == other.next;
}

Frame make_frame(const RunStatus& status, Clock::UtcTime now) {
  Frame frame;
  frame.head = headline(status);
  const auto& rounds = status.run_state.rounds;
  if (!rounds.empty()) {
    const auto& [number, round] = *rounds.rbegin();
    frame.head += round.evaluates ? ", evaluation: " : ", round " + std::to_string(number) + ": ";
    frame.head += round_state(round, status.run_state);
    for (const auto& [name, facility] : round.facilities)
      frame.rows.push_back(row_of(status, number, name, facility, now));
  }
  // The time of the last sign, and not the time since: the note stays true on the terminal.
  if (!silence_text(status.coordinator, status.last_sign, now).empty())
    frame.notes.push_back("no sign of life of the coordinator (" + status.coordinator + ") since " +
                          format_utc(*status.last_sign) +
                          ": it is frozen, or its disk hangs; see xffl status");
  const auto& stopped = status.run_state.stopped;
  if (status.state == "stopped")
    frame.notes.push_back(
        stopped ? "stopped at " + stopped->time_utc + " (" + stopped->kind +
                      "): " + log::printable(stopped->reason, 1000)
                : "the coordinator ended without a reason (killed, or the machine crashed)");
  if (status.state == "running" || status.state == "stopped")
    for (const auto& [name, credential] : status.credentials)
      frame.notes.push_back(
          name.str() + ": its certificate " +
          (credential.ends <= now ? "expired at " : "ends at ") + format_utc(credential.ends) +
          (credential.renew.empty() ? ": renew it"
                                    : ": renew it with: " + log::printable(credential.renew, 300)));
  frame.next = next_event(status);
  const std::string time = format_utc(now);
  frame.updated = time.substr(0, 10) + " " + time.substr(11, 8) + " UTC";
  return frame;
}

std::vector<std::string> fit(const Frame& frame, WindowSize window, bool colours) {
  const size_t columns = std::max<size_t>(window.columns, 2) - 1;
  const size_t most = std::max<size_t>(window.rows, 2) - 1;
  const auto colour = [&](std::string_view wanted) {
    return colours ? wanted : std::string_view();
  };
  std::vector<std::string> lines = {line_of(frame.head, columns, colour(kBold))};
  if (most == 1) return lines;
  const size_t room = most - 2;  // between the first line and the last line
  std::vector<std::string> body;
  for (const std::string& note : frame.notes)
    body.push_back(line_of(note, columns, colour(kYellow)));
  const std::vector<std::string> rows = table(frame.rows);  // the titles first
  const size_t count = frame.notes.size() + frame.rows.size();
  if (!frame.rows.empty() && count < room) body.push_back(line_of(rows[0], columns, colour(kBold)));
  for (size_t i = 0; i < frame.rows.size(); ++i)
    body.push_back(line_of(rows[i + 1], columns, colour(frame.rows[i].urgent ? kYellow : "")));
  if (body.size() > room) {
    const size_t shown = room == 0 ? 0 : room - 1;
    body.resize(shown);
    if (room > 0)
      body.push_back(
          line_of("... " + std::to_string(count - shown) + " more: xffl status", columns, ""));
  }
  lines.insert(lines.end(), body.begin(), body.end());
  lines.push_back(last_line(frame, columns));
  return lines;
}

std::string draw_in_place(const std::vector<std::string>& lines) {
  std::string bytes(kBeginUpdate);
  bytes += kHome;
  for (const std::string& line : lines) (bytes += line) += std::string(kEraseLine) + "\r\n";
  return bytes += std::string(kEraseBelow) + std::string(kEndUpdate);
}

}  // namespace xffl::status
