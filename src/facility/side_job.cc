#include "xffl/facility/side_job.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <sstream>

#include "site.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/base/sha256.h"
#include "xffl/facility/job_script.h"
#include "xffl/plan/facility_layout.h"

namespace xffl::facility {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr size_t kShownSideOutput = 1500;
constexpr std::string_view kSideJobId = "job.id";  // in a job's folder, after the submission
// A job's last files may appear later than its end, on a shared file system.
constexpr seconds kLateSideFiles{60};
constexpr milliseconds kSideLook{2000};

// The highest N of the folders job<N>; 0: none.
int newest_side_job(remote::Session& session, const RemotePath& folder) {
  std::vector<std::string> names;
  try {
    names = session.list(folder);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kNotFound) throw;
  }
  int newest = 0;
  for (const std::string& name : names) {
    int number = 0;
    const char* end = name.data() + name.size();
    if (!name.starts_with("job") || name.size() > 8) continue;
    const auto read = std::from_chars(name.data() + 3, end, number);
    if (read.ec == std::errc() && read.ptr == end) newest = std::max(newest, number);
  }
  return newest;
}

// A job that ended shows its files at once on this machine; on a shared file system later.
seconds gone_for_good(const config::Facility& facility) {
  return facility.scheduler.manager().this_machine ? seconds(3) : kLateSideFiles;
}

}  // namespace

SideJob::SideJob(const config::Facility& facility, milliseconds poll_interval, Services& services,
                 SidePlace place, std::stop_token stop, OnState on_state)
    : facility_(facility),
      poll_interval_(poll_interval),
      services_(services),
      place_(std::move(place)),
      stop_(std::move(stop)),
      on_state_(std::move(on_state)),
      session_(services.connect(facility)),
      scheduler_(services.scheduler(facility, session_)),
      number_(newest_side_job(*session_, place_.parent)) {}

RemotePath SideJob::folder() const { return place_.parent / ("job" + std::to_string(number_)); }
std::string SideJob::job_name() const { return place_.name + "-" + std::to_string(number_); }
bool SideJob::has_report() const { return session_->stat(folder() / place_.report).has_value(); }

void SideJob::state(const std::string& message) {
  if (message == state_) return;
  state_ = message;
  if (on_state_) on_state_(message);
}

bool SideJob::is_under_way() {
  if (number_ == 0) return false;
  const bool has_id = session_->stat(folder() / kSideJobId).has_value();
  const bool is_over = has_report();
  if (has_id) try {
      id_ = JobId(read_text(*session_, folder() / kSideJobId, 200));
    } catch (const Error&) {
      if (!is_over) throw;  // the id of a job that has ended is only shown
    }
  if (is_over) return false;
  const auto fence = folder() / plan::kFence;
  if (session_->stat(fence)) return false;
  if (!has_id) {
    const auto found = scheduler_->find({.name = job_name(),
                                         .script = "",
                                         .folder = folder(),
                                         .nodes_folder = facility_.on_compute_nodes(folder())},
                                        stop_);
    if (found.empty()) {
      session_->make_dirs(fence);
      return false;
    }
    id_ = found.front();
  }
  const submit::JobStatus status = query();
  const bool alive = status.state == submit::JobState::kPending ||
                     status.state == submit::JobState::kHeld ||
                     status.state == submit::JobState::kRunning;
  if (alive || has_report()) return true;  // it may have ended since the first look
  session_->make_dirs(fence);
  return false;
}

submit::JobStatus SideJob::query() {
  const std::array jobs{submit::SubmittedJob{id_, job_name()}};
  const auto answers = scheduler_->query(jobs, stop_);
  const auto found = answers.find(id_);
  return found == answers.end() ? submit::JobStatus{} : found->second;
}

void SideJob::submit(const config::Facility& shape, std::vector<remote::NewFile> files) {
  ++number_;
  session_->put_files(folder(), files);
  job::JobSpec spec;
  spec.key.nonce = random_hex(16);
  const submit::JobRequest request{
      .name = job_name(),
      .script = job_script(shape, spec, job_name(), folder(), services_.programs, std::nullopt),
      .folder = folder(),
      .may_requeue = shape.may_requeue,
      .nodes_folder = shape.on_compute_nodes(folder())};
  const auto scheduler = services_.scheduler(shape, session_);
  if (stop_.stop_requested())
    throw Error(ErrorKind::kCancelled, "stopped before " + request.name + " was submitted");
  try {
    // A stop in the middle would leave a job whose id nobody knows.
    id_ = scheduler->submit(request, {});
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kRemote) throw;
    throw Error(ErrorKind::kRemote,
                std::string(error.what()) + ": the job may exist; the same command looks for it");
  }
  write_text_atomic(*session_, folder() / kSideJobId, id_.str());
  state("job " + id_.str() + " is submitted");
}

bool SideJob::follow(const std::function<bool()>& look) {
  const milliseconds pause = std::max(poll_interval_, milliseconds(500));
  auto next_query = services_.clock.monotonic();
  std::optional<Clock::MonotonicTime> gone_since;  // the first answer in a row without the job
  for (;;) {
    try {
      if (look()) return true;
      const auto now = services_.clock.monotonic();
      if (now >= next_query) {
        next_query = now + pause;
        const bool gone = is_gone(query());
        gone_since = gone ? gone_since.value_or(now) : std::optional<Clock::MonotonicTime>();
      }
      if (gone_since && now - *gone_since > gone_for_good(facility_)) return false;
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::kCancelled) throw_stopped();  // in a command there
      if (error.kind() != ErrorKind::kRemote) throw;
      log::warning("the facility does not answer; the job goes on",
                   {{"facility", facility_.name.str()}, {"error", std::string(error.what())}});
    }
    if (!services_.clock.sleep(std::min(kSideLook, pause), stop_)) throw_stopped();
  }
}

void SideJob::throw_stopped() const {
  throw Error(ErrorKind::kCancelled,
              "stopped; job " + id_.str() + " goes on, and the same command follows it");
}

void SideJob::cancel() {
  session_->make_dirs(folder() / plan::kFence);
  scheduler_->cancel({id_, job_name()}, {});
}

bool SideJob::is_gone(const submit::JobStatus& status) {
  using submit::JobState;
  switch (status.state) {
    case JobState::kPending:
    case JobState::kHeld:
      state("job " + id_.str() + " waits in the queue" +
            (status.reason.empty() ? "" : ": " + log::printable(status.reason, 100)));
      return false;
    case JobState::kRunning:
      state("job " + id_.str() + " runs");
      return false;
    default:
      return true;
  }
}

std::string SideJob::last_output() const {
  std::string output;
  try {
    output = scrubbed_tail(*session_, folder() / submit::kJobOutput, kShownSideOutput);
    if (output.empty()) output = "(no output)";
  } catch (const Error& error) {
    output = error.what();
  }
  std::istringstream lines(output);
  output.clear();
  for (std::string line; std::getline(lines, line);) output += "\n  " + log::printable(line, 400);
  return output;
}

}  // namespace xffl::facility
