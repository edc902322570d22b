#include "process_job.h"

#include <signal.h>

#include <algorithm>
#include <charconv>
#include <limits>

#include "xffl/base/process_table.h"

namespace xffl::submit {
namespace {

template <class Integer>
std::optional<Integer> parse_plain(std::string_view text) {
  Integer value = 0;
  const auto [rest, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool plain = problem == std::errc() && rest == text.data() + text.size() &&
                     text.front() >= '1' && text.front() <= '9';
  return plain ? std::optional(value) : std::nullopt;
}

bool belongs(const ProcessInfo& process, const ProcessJob& job) {
  return process.alive() && process.session == job.leader &&
         process.start_ticks >= job.start_ticks &&
         (process.pid != job.leader || process.start_ticks == job.start_ticks);
}

}  // namespace

JobId ProcessJob::id() const {
  return JobId(std::to_string(leader) + "." + std::to_string(start_ticks));
}

bool ProcessJob::leader_alive() const {
  const auto info = process_info(leader);
  return info && info->alive() && info->start_ticks == start_ticks;
}

std::vector<pid_t> ProcessJob::members() const {
  std::vector<pid_t> result;
  // While anybody is in the session, the kernel gives its number to no new process: a process of
  // that number with another start time means that the whole session is over.
  const auto info = process_info(leader);
  if (info && info->start_ticks != start_ticks) return result;
  for (const ProcessInfo& process : list_processes())
    if (belongs(process, *this)) result.push_back(process.pid);
  return result;
}

bool ProcessJob::signal_group(int signal_number) const {
  return leader > 1 && leader_alive() && ::kill(-leader, signal_number) == 0;
}

void ProcessJob::signal_members(int signal_number) const {
  for (pid_t pid : members()) {
    const auto info = process_info(pid);
    if (pid > 1 && info && belongs(*info, *this)) ::kill(pid, signal_number);
  }
}

std::optional<ProcessJob> parse_process_job(std::string_view text) {
  const size_t dot = text.find('.');
  if (dot == std::string_view::npos || dot == 0 || dot + 1 == text.size()) return std::nullopt;
  const auto pid = parse_plain<pid_t>(text.substr(0, dot));
  const auto ticks = parse_plain<uint64_t>(text.substr(dot + 1));
  if (!pid || !ticks || *pid < 2) return std::nullopt;
  return ProcessJob{*pid, *ticks};
}

}  // namespace xffl::submit
