// A scripted batch system, and schedulers that talk to it.
//
// FakeCluster is the facility: it keeps its jobs whichever coordinator asks. FakeScheduler is one
// coordinator's way to it. The test sets what goes wrong and when a job changes its state.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "xffl/base/error.h"
#include "xffl/submit/scheduler.h"

namespace xffl::test {

struct FakeJob {
  JobId id;
  submit::JobRequest request;
  submit::JobState state = submit::JobState::kPending;
  bool visible = true;  // false: queries and find() do not mention it (purged, or not yet there)
};

class FakeCluster {
 public:
  enum class Submission {
    kAccepted,
    kReplyLost,           // the job exists, the caller sees kRemote
    kReplyLostInvisible,  // the same, and the job appears only when set_visible() says so
    kLost,                // no job, the caller sees kRemote
    kRefused,             // no job, the caller sees kConfig
  };

  /// How the next submissions end, in order; afterwards kAccepted.
  void script(std::vector<Submission> next) {
    const std::lock_guard lock(mutex_);
    submissions_.assign(next.begin(), next.end());
  }
  /// So many next find() and query() calls throw kRemote.
  void fail_questions(int count) {
    const std::lock_guard lock(mutex_);
    failing_questions_ = count;
  }
  void set_state(const JobId& id, submit::JobState state) {
    const std::lock_guard lock(mutex_);
    for (FakeJob& job : jobs_)
      if (job.id == id) job.state = state;
  }
  void set_visible(const JobId& id, bool visible) {
    const std::lock_guard lock(mutex_);
    for (FakeJob& job : jobs_)
      if (job.id == id) job.visible = visible;
  }
  std::vector<FakeJob> jobs() const {
    const std::lock_guard lock(mutex_);
    return jobs_;
  }
  int questions() const {
    const std::lock_guard lock(mutex_);
    return questions_;
  }

  /// Called after a job was accepted, without locks: the job's own effects. May call set_state().
  std::function<void(const FakeJob&)> on_start;

 private:
  friend class FakeScheduler;

  void question() {
    ++questions_;
    if (failing_questions_ == 0) return;
    --failing_questions_;
    throw Error(ErrorKind::kRemote, "the fake scheduler does not answer");
  }

  mutable std::mutex mutex_;
  std::deque<Submission> submissions_;
  std::vector<FakeJob> jobs_;
  int failing_questions_ = 0;
  int questions_ = 0;
};

class FakeScheduler final : public submit::Scheduler {
 public:
  explicit FakeScheduler(FakeCluster& cluster, std::chrono::milliseconds settle_time = {})
      : cluster_(cluster), settle_time_(settle_time) {}

  JobId submit(const submit::JobRequest& request, std::stop_token stop) override {
    using Submission = FakeCluster::Submission;
    if (stop.stop_requested()) throw Error(ErrorKind::kCancelled, "stopped before submission");
    FakeJob job{.id = {}, .request = request};
    Submission end = Submission::kAccepted;
    {
      const std::lock_guard lock(cluster_.mutex_);
      if (!cluster_.submissions_.empty()) {
        end = cluster_.submissions_.front();
        cluster_.submissions_.pop_front();
      }
      if (end == Submission::kRefused)
        throw Error(ErrorKind::kConfig, "the fake scheduler refuses " + request.name);
      if (end != Submission::kLost) {
        job.id = JobId(std::to_string(1000 + cluster_.jobs_.size()));
        job.visible = end != Submission::kReplyLostInvisible;
        cluster_.jobs_.push_back(job);
      }
    }
    if (end != Submission::kLost && cluster_.on_start) cluster_.on_start(job);
    if (end != Submission::kAccepted)
      throw Error(ErrorKind::kRemote,
                  "the reply to the submission of " + request.name + " is lost");
    return job.id;
  }

  std::vector<JobId> find(const submit::JobRequest& request, std::stop_token) override {
    const std::lock_guard lock(cluster_.mutex_);
    cluster_.question();
    std::vector<JobId> found;
    for (const FakeJob& job : cluster_.jobs_)
      if (job.visible && job.request.name == request.name) found.push_back(job.id);
    return found;
  }

  std::map<JobId, submit::JobStatus> query(std::span<const submit::SubmittedJob> asked,
                                           std::stop_token) override {
    const std::lock_guard lock(cluster_.mutex_);
    cluster_.question();
    std::map<JobId, submit::JobStatus> states;
    for (const submit::SubmittedJob& job : asked) states[job.id] = {};
    for (const FakeJob& job : cluster_.jobs_)
      if (job.visible && states.contains(job.id))
        states[job.id] = {.state = job.state, .native = std::string(submit::to_string(job.state))};
    return states;
  }

  void cancel(const submit::SubmittedJob& asked, std::stop_token) override {
    const std::lock_guard lock(cluster_.mutex_);
    for (FakeJob& job : cluster_.jobs_)
      if (job.id == asked.id && job.request.name == asked.name &&
          job.state != submit::JobState::kEnded)
        job.state = submit::JobState::kCancelled;
  }

  std::chrono::milliseconds settle_time() const override { return settle_time_; }

 private:
  FakeCluster& cluster_;
  std::chrono::milliseconds settle_time_;
};

}  // namespace xffl::test
