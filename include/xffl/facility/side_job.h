// A job of xffl at a facility beside those of a run (`xffl prepare`, `xffl doctor --job`).
//
// Its folders are <parent>/job1, job2, ...; the newest one counts. A job is submitted once: a stop
// or a lost link leaves it alone, and a later SideJob of the same place finds it. A job that was
// looked for in vain, and may still appear, finds a fence in place of its claim and exits.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "xffl/config/experiment.h"
#include "xffl/facility/services.h"

namespace xffl::facility {

struct SidePlace {
  RemotePath parent;   // of the job's folders
  std::string name;    // of the batch jobs, without their number
  std::string report;  // below a job's folder: written last
};

class SideJob {
 public:
  using OnState = std::function<void(const std::string& message)>;

  /// Connects, and looks up the newest folder. follow() asks for the job's state every
  /// `poll_interval` (Experiment::poll_interval()), at most twice a second. `facility` and
  /// `services` must outlive this object; `on_state` may be empty, and gets each change. Throws
  /// kRemote.
  SideJob(const config::Facility& facility, std::chrono::milliseconds poll_interval,
          Services& services, SidePlace place, std::stop_token stop, OnState on_state);

  remote::Session& session() const { return *session_; }
  int number() const { return number_; }  // 0: there is no job's folder
  RemotePath folder() const;
  const JobId& id() const { return id_; }  // empty until is_under_way() or submit() knows it
  bool has_report() const;

  /// True when the newest folder's job had no report and is queued, runs or has just reported. A
  /// job that has ended without a report, or that cannot be found, is fenced.
  bool is_under_way();

  /// Puts `files` into a new folder, and submits the job of `shape` (the facility with the
  /// resources and the command of this job). Throws kConfig (the queue manager rejects the job),
  /// kRemote (the answer was lost: the job may exist).
  void submit(const config::Facility& shape, std::vector<remote::NewFile> files);

  /// Calls `look` until it returns true, and then returns true. Returns false when the job has
  /// ended and `look` has still returned false after the time in which late files may appear. An
  /// error kRemote of `look` is a warning only. Throws kCancelled on a stop.
  bool follow(const std::function<bool()>& look);

  /// Cancels the job, and fences its folder. Throws kRemote: the job may go on.
  void cancel();

  /// The end of the job's output, each line indented and made printable; or the reason why there
  /// is none.
  std::string last_output() const;

 private:
  std::string job_name() const;
  [[noreturn]] void throw_stopped() const;
  submit::JobStatus query();
  void state(const std::string& message);
  bool is_gone(const submit::JobStatus& status);

  const config::Facility& facility_;
  const std::chrono::milliseconds poll_interval_;
  Services& services_;
  SidePlace place_;
  std::stop_token stop_;
  OnState on_state_;
  std::shared_ptr<remote::Session> session_;
  std::shared_ptr<submit::Scheduler> scheduler_;
  int number_ = 0;
  JobId id_;
  std::string state_;
};

}  // namespace xffl::facility
