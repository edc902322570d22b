// How it works: a submitted script becomes the leader of a session of its own, which the
// coordinator's end does not touch. The kernel is the queue's memory: /proc answers query(), and
// what a job wrote into its claim answers find(), also to a coordinator that did not start it.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <mutex>
#include <thread>

#include "process_job.h"
#include "xffl/base/clock.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/process.h"
#include "xffl/base/process_table.h"
#include "xffl/submit/scheduler.h"

namespace xffl::submit {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

constexpr milliseconds kPatience{5000};        // between SIGTERM and SIGKILL
constexpr milliseconds kKillPatience{10'000};  // after it: a process that waits for a dead disk
                                               // (state D) hears nothing

// The first word of claim/owner; empty while there is none. The file is written by the job: it may
// be torn or anything else.
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

std::string exit_words(int status) {
  return WIFSIGNALED(status) ? "signal " + std::to_string(WTERMSIG(status))
                             : "exit " + std::to_string(WEXITSTATUS(status));
}

// It may end later, when its disk answers: whoever asked asks again.
[[noreturn]] void fail_to_kill(const ProcessJob& job) {
  std::string who;
  for (const pid_t pid : job.members())
    if (const auto info = process_info(pid))
      who += (who.empty() ? "" : ", ") + std::to_string(pid) + " in state " + info->state;
  throw Error(ErrorKind::kRemote, "job " + job.id().str() +
                                      " was killed and has not ended: process " + who +
                                      " (D: it waits for a disk or file system)");
}

class ProcessScheduler final : public Scheduler {
 public:
  ~ProcessScheduler() override { reap(); }

  JobId submit(const JobRequest& request, std::stop_token stop) override {
    if (stop.stop_requested())
      throw Error(ErrorKind::kCancelled, "stopped before " + request.name + " was submitted");
    const fs::path folder = request.folder.str();
    std::error_code ignored;
    if (request.script.empty() || request.folder.empty() || !fs::is_directory(folder, ignored))
      throw Error(ErrorKind::kConfig, "cannot start " + request.name +
                                          ": it needs a script and "
                                          "the existing folder '" +
                                          folder.string() + "'");
    const fs::path script = folder / "job.sh";
    write_file_atomic(script, request.script);
    const pid_t pid =
        start_detached({.argv = {"sh", script.string()}, .cwd = folder}, folder / kJobOutput);
    // Nobody else reaps it: even when it has ended already, its entry is still there.
    const auto info = process_info(pid);
    if (!info) throw Error(ErrorKind::kRemote, "lost sight of " + request.name + " at its start");
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
    const auto job = parse_process_job(submitted.id.str());  // the id is never given away
    if (!job) return;
    reap();
    // The script's group is told, once; `xffl exec` in it tells its ranks, which have groups of
    // their own. Whoever is left when the patience ends is killed, whatever the group.
    if (!job->signal_group(SIGTERM)) job->signal_members(SIGTERM);
    SystemClock clock;
    const auto patience_ends = clock.monotonic() + kPatience;
    while (reap(), !job->members().empty()) {
      const auto now = clock.monotonic();
      if (now >= patience_ends) job->signal_members(SIGKILL);
      if (now >= patience_ends + kKillPatience) fail_to_kill(*job);
      if (!clock.sleep(milliseconds(50), stop)) return;
    }
  }

  milliseconds settle_time() const override { return milliseconds(300); }

 private:
  JobStatus state_of(const JobId& id) {
    const auto job = parse_process_job(id.str());
    if (!job) return {.state = JobState::kUnknown, .native = "not a process of this scheduler"};
    if (job->leader_alive()) return {.state = JobState::kRunning, .native = "running"};
    if (!job->members().empty())
      return {.state = JobState::kRunning, .native = "running without its script"};
    const std::lock_guard lock(mutex_);
    const auto ended = endings_.find(id);
    return {.state = JobState::kEnded, .native = ended == endings_.end() ? "gone" : ended->second};
  }

  // Collects own children that have ended; jobs of an earlier coordinator are init's to reap.
  void reap() {
    const std::lock_guard lock(mutex_);
    std::erase_if(children_, [&](const ProcessJob& job) {
      int status = 0;
      const pid_t ended = ::waitpid(job.leader, &status, WNOHANG);
      if (ended == job.leader) endings_[job.id()] = exit_words(status);
      return ended == job.leader || (ended < 0 && errno == ECHILD);
    });
  }

  std::mutex mutex_;
  std::vector<ProcessJob> children_;
  std::map<JobId, std::string> endings_;
};

}  // namespace

std::unique_ptr<Scheduler> make_process_scheduler() { return std::make_unique<ProcessScheduler>(); }

}  // namespace xffl::submit
