// How it works: a submitted script becomes the leader of its own session and survives the
// coordinator. query() reads /proc; find() reads the owner in the job's claim, so that a restarted
// coordinator finds the job, too.
#include "process_scheduler.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string_view>
#include <variant>
#include <vector>

#include "xffl/base/clock.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/process.h"
#include "xffl/submit/queue_manager.h"
#include "xffl/submit/scheduler.h"
#include "xffl/submit/template.h"

namespace xffl::submit {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

// A failed look at /proc shows nothing about a job: the scheduler did not answer.
template <class Look, class... Arguments>
auto look_at_proc(Look look, Arguments... arguments) {
  try {
    return look(arguments...);
  } catch (const Error& error) {
    throw Error(ErrorKind::kRemote, error.what(), error.error_number());
  }
}

// A job is the session of its leader; its id is "<pid>.<start ticks>" of the leader. The job lives
// as long as any process of the session: ranks that outlive a killed script still train. The
// scheduler signals a process only if the process belongs to the session and is not older than the
// leader. A reused pid therefore gets no signal.
struct ProcessJob {
  pid_t leader = 0;
  uint64_t start_ticks = 0;

  JobId id() const { return JobId(std::to_string(leader) + "." + std::to_string(start_ticks)); }

  /// True when the leader runs. Cheap. After false, other processes of the session may still run.
  bool leader_alive() const {
    const auto info = look_at_proc(process_info, leader);
    return info && info->alive() && info->start_ticks == start_ticks;
  }

  /// True when the leader's start lies in the future of this boot. An earlier boot remains
  /// unnoticed once this boot is older than the other one was at the job's start.
  bool is_of_an_earlier_boot() const {
    timespec now{};
    ::clock_gettime(CLOCK_BOOTTIME, &now);
    const auto ticks_per_second = static_cast<uint64_t>(::sysconf(_SC_CLK_TCK));
    return start_ticks / ticks_per_second > static_cast<uint64_t>(now.tv_sec);
  }

  bool owns(const ProcessInfo& process) const {
    return process.alive() && process.session == leader && process.start_ticks >= start_ticks &&
           (process.pid != leader || process.start_ticks == start_ticks);
  }

  /// Living processes of the job; reads the machine's whole process table.
  std::vector<pid_t> members() const {
    std::vector<pid_t> result;
    // The kernel reuses the leader's pid only after the session's last process has ended.
    const auto info = look_at_proc(process_info, leader);
    if (info && info->start_ticks != start_ticks) return result;
    for (const ProcessInfo& process : look_at_proc(list_processes))
      if (owns(process)) result.push_back(process.pid);
    return result;
  }

  /// Signals the leader's process group; returns false without effect when the leader is gone.
  bool signal_group(int signal_number) const {
    return leader > 1 && leader_alive() && ::kill(-leader, signal_number) == 0;
  }

  /// Signals every living process of the job.
  void signal_members(int signal_number) const {
    for (pid_t pid : members()) {
      const auto info = look_at_proc(process_info, pid);
      if (pid > 1 && info && owns(*info)) ::kill(pid, signal_number);
    }
  }
};

template <class Integer>
std::optional<Integer> parse_plain(std::string_view text) {
  Integer value = 0;
  const auto [rest, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool plain = problem == std::errc() && rest == text.data() + text.size() &&
                     text.front() >= '1' && text.front() <= '9';
  return plain ? std::optional(value) : std::nullopt;
}

/// Parses "<pid>.<start ticks>"; empty for any other text: a pid below 2, signs, leading zeros,
/// trailing characters.
std::optional<ProcessJob> parse_process_job(std::string_view text) {
  const size_t dot = text.find('.');
  if (dot == std::string_view::npos || dot == 0 || dot + 1 == text.size()) return std::nullopt;
  const auto pid = parse_plain<pid_t>(text.substr(0, dot));
  const auto ticks = parse_plain<uint64_t>(text.substr(dot + 1));
  if (!pid || !ticks || *pid < 2) return std::nullopt;
  return ProcessJob{*pid, *ticks};
}

// The first field of claim/owner; empty while the file is absent. The job writes the file, so any
// content is possible.
std::optional<ProcessJob> claim_owner(const fs::path& folder) {
  const fs::path path = folder / "claim" / "owner";
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!fd) {
    if (errno == ENOENT || errno == ENOTDIR) return std::nullopt;
    throw Error(ErrorKind::kRemote, system_error("read " + path.string(), errno).what());
  }
  char text[128];
  const ssize_t n = ::pread(fd.get(), text, sizeof text, 0);
  if (n < 0) throw Error(ErrorKind::kRemote, system_error("read " + path.string(), errno).what());
  const std::string_view line(text, static_cast<size_t>(n));
  const size_t end = line.find_first_of(" \n");
  if (end == std::string_view::npos) return std::nullopt;
  return parse_process_job(line.substr(0, end));
}

std::string describe_exit(int status) {
  return WIFSIGNALED(status) ? "signal " + std::to_string(WTERMSIG(status))
                             : "exit " + std::to_string(WEXITSTATUS(status));
}

[[noreturn]] void fail_to_kill(const ProcessJob& job) {
  std::string processes;
  for (const pid_t pid : job.members())
    if (const auto info = look_at_proc(process_info, pid))
      processes +=
          (processes.empty() ? "" : ", ") + std::to_string(pid) + " in state " + info->state;
  throw Error(ErrorKind::kRemote, "job " + job.id().str() +
                                      " was killed and has not ended: process " + processes +
                                      " (state D: waiting for a disk or file system)");
}

class ProcessScheduler final : public Scheduler {
 public:
  explicit ProcessScheduler(const CancelTimeouts& timeouts) : timeouts_(timeouts) {}
  ~ProcessScheduler() override { reap(); }

  JobId submit(const JobRequest& request, std::stop_token stop) override {
    if (stop.stop_requested())
      throw Error(ErrorKind::kCancelled, "stopped before " + request.name + " was submitted");
    const fs::path folder = request.folder.str();
    std::error_code error;
    const fs::file_status status = fs::status(folder, error);
    // A disk or a network file system that fails for now rejects nothing.
    if (error && status.type() != fs::file_type::not_found)
      throw system_error("stat " + folder.string(), error.value());
    if (request.script.empty() || request.folder.empty() || !fs::is_directory(status))
      throw Error(ErrorKind::kConfig, "cannot start " + request.name +
                                          ": it needs a script and the existing folder '" +
                                          folder.string() + "'");
    const fs::path script = folder / "job.sh";
    write_file_atomic(script, request.script);
    const pid_t pid =
        start_detached({.argv = {"sh", script.string()}, .cwd = folder}, folder / kJobOutput);
    // Only reap() waits for the child: its /proc entry exists even if the child has ended.
    const auto info = look_at_proc(process_info, pid);
    if (!info)
      throw Error(ErrorKind::kRemote, "process " + std::to_string(pid) + " of " + request.name +
                                          " is not in /proc after its start");
    const std::lock_guard lock(mutex_);
    const ProcessJob job{pid, info->start_ticks};
    children_.push_back(job);
    return job.id();
  }

  std::vector<JobId> find(const JobRequest& request, std::stop_token /*stop*/) override {
    const auto owner = claim_owner(request.folder.str());
    return owner ? std::vector{owner->id()} : std::vector<JobId>{};
  }

  std::map<JobId, JobStatus> query(std::span<const SubmittedJob> jobs,
                                   std::stop_token /*stop*/) override {
    reap();
    std::map<JobId, JobStatus> states;
    for (const SubmittedJob& job : jobs) states[job.id] = state_of(job.id);
    return states;
  }

  void cancel(const SubmittedJob& submitted, std::stop_token stop) override {
    const auto job = parse_process_job(submitted.id.str());  // ids are unique
    if (!job) return;
    reap();
    // cancel() sends SIGTERM once, to the script's group. `xffl exec` in that group forwards
    // SIGTERM to its ranks, which have their own groups. cancel() then sends SIGKILL to every
    // remaining process.
    if (!job->signal_group(SIGTERM)) job->signal_members(SIGTERM);
    SystemClock clock;
    const auto term_deadline = clock.monotonic() + timeouts_.term;
    while (reap(), !job->members().empty()) {
      const auto now = clock.monotonic();
      if (now >= term_deadline) job->signal_members(SIGKILL);
      if (now >= term_deadline + timeouts_.kill) fail_to_kill(*job);
      if (!clock.sleep(milliseconds(50), stop)) return;
    }
  }

  milliseconds settle_time() const override { return milliseconds(300); }
  std::optional<ClockOffset> clock_offset() const override { return ClockOffset{}; }

 private:
  JobStatus state_of(const JobId& id) {
    const auto job = parse_process_job(id.str());
    if (!job) return {.state = JobState::kUnknown, .native = "not a process of this scheduler"};
    if (job->leader_alive()) return {.state = JobState::kRunning, .native = "running"};
    if (!job->members().empty())
      return {.state = JobState::kRunning, .native = "running without its script"};
    const std::lock_guard lock(mutex_);
    const auto ended = endings_.find(id);
    if (ended != endings_.end()) return {.state = JobState::kEnded, .native = ended->second};
    if (job->is_of_an_earlier_boot())
      return {.state = JobState::kEnded,
              .cause = EndCause::kInfrastructure,
              .native = "gone: this machine has restarted"};
    return {.state = JobState::kEnded, .native = "gone"};
  }

  // Reaps this coordinator's children that have ended; init reaps the jobs of an earlier
  // coordinator.
  void reap() {
    const std::lock_guard lock(mutex_);
    std::erase_if(children_, [&](const ProcessJob& job) {
      int status = 0;
      const pid_t ended = ::waitpid(job.leader, &status, WNOHANG);
      if (ended == job.leader) endings_[job.id()] = describe_exit(status);
      return ended == job.leader || (ended < 0 && errno == ECHILD);
    });
  }

  const CancelTimeouts timeouts_;
  std::mutex mutex_;
  std::vector<ProcessJob> children_;
  std::map<JobId, std::string> endings_;
};

// `xffl exec` starts the ranks.
ScriptValues process_values(const ScriptRequest& request) {
  std::vector<std::string> argv = {request.xffl, "exec", "--world-size",
                                   std::to_string(request.world_size), "--"};
  argv.insert(argv.end(), request.trainer.begin(), request.trainer.end());
  return {.values = {{"launch", argv}}, .optional = {}};
}

constexpr QueueManager kProcess{
    .name = "process",
    .title = "this machine",
    .this_machine = true,
    .settings = settings_type<std::monostate>,
    .shape = [](const QueueSettings&,
                int world_size) { return JobShape{.tasks_per_node = world_size}; },
    .script_values = process_values,
    .make = [](const QueueSettings&, std::shared_ptr<remote::Session>,
               Clock&) -> std::shared_ptr<Scheduler> { return make_process_scheduler(); },
};

}  // namespace

std::unique_ptr<Scheduler> make_process_scheduler() { return make_process_scheduler({}); }
std::unique_ptr<Scheduler> make_process_scheduler(const CancelTimeouts& timeouts) {
  return std::make_unique<ProcessScheduler>(timeouts);
}

const QueueManager& process_queue_manager() { return kProcess; }

}  // namespace xffl::submit
