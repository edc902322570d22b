// A batch system in memory.
//
// FakeCluster is the facility and holds its jobs; FakeScheduler is one coordinator's connection to
// the cluster. The test sets the state of each job.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "xffl/base/error.h"
#include "xffl/submit/scheduler.h"

namespace xffl::test {

struct FakeJob {
  JobId id;
  std::string name;
  bool may_requeue = true;
  submit::JobState state = submit::JobState::kPending;
};

class FakeCluster {
 public:
  void set_state(const JobId& id, submit::JobState state) {
    const std::lock_guard lock(mutex_);
    for (FakeJob& job : jobs_)
      if (job.id == id) job.state = state;
  }
  std::vector<FakeJob> jobs() {
    const std::lock_guard lock(mutex_);
    return jobs_;
  }

  std::optional<submit::ClockOffset> clock;  // of the scheduler

 private:
  friend class FakeScheduler;

  std::mutex mutex_;
  std::vector<FakeJob> jobs_;
};

class FakeScheduler final : public submit::Scheduler {
 public:
  explicit FakeScheduler(FakeCluster& cluster) : cluster_(cluster) {}

  JobId submit(const submit::JobRequest& request, std::stop_token stop) override {
    if (stop.stop_requested()) throw Error(ErrorKind::kCancelled, "stopped before submission");
    const std::lock_guard lock(cluster_.mutex_);
    cluster_.jobs_.push_back(
        {JobId(std::to_string(1000 + cluster_.jobs_.size())), request.name, request.may_requeue});
    return cluster_.jobs_.back().id;
  }

  std::vector<JobId> find(const submit::JobRequest& request, std::stop_token) override {
    const std::lock_guard lock(cluster_.mutex_);
    std::vector<JobId> found;
    for (const FakeJob& job : cluster_.jobs_)
      if (job.name == request.name) found.push_back(job.id);
    return found;
  }

  std::map<JobId, submit::JobStatus> query(std::span<const submit::SubmittedJob> asked,
                                           std::stop_token) override {
    const std::lock_guard lock(cluster_.mutex_);
    std::map<JobId, submit::JobStatus> states;
    for (const submit::SubmittedJob& job : asked) states[job.id] = {};
    for (const FakeJob& job : cluster_.jobs_)
      if (states.contains(job.id))
        states[job.id] = {.state = job.state, .native = std::string(submit::to_string(job.state))};
    return states;
  }

  void cancel(const submit::SubmittedJob& asked, std::stop_token) override {
    const std::lock_guard lock(cluster_.mutex_);
    for (FakeJob& job : cluster_.jobs_)
      if (job.id == asked.id && job.name == asked.name && job.state != submit::JobState::kEnded)
        job.state = submit::JobState::kCancelled;
  }

  std::chrono::milliseconds settle_time() const override { return {}; }
  std::optional<submit::ClockOffset> clock_offset() const override { return cluster_.clock; }

 private:
  FakeCluster& cluster_;
};

}  // namespace xffl::test
