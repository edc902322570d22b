// A step of the state machine, as its handlers see the step (machine.cc explains it). Each file
// holds the phases of one concern:
//
//   machine.cc          Idle, Pushing, Fetching, Finished; the table of (phase, event) pairs
//   lost_submission.cc  Submitting, Searching: a lost answer of sbatch
//   job_polling.cc      Polling, Ended: the scheduler's answers and the job's end
//   closing.cc          Closing: fence, cancellation, last search for a report
//   deadline.cc         the round's deadline and the longest outage, in every phase
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "xffl/facility/machine.h"

namespace xffl::facility {

class StepInProgress {
 public:
  StepInProgress(const FacilityPolicy& policy, FacilityMachine machine, const Now& now)
      : policy_(policy),
        machine_(std::move(machine)),
        known_(machine_.known),
        link_(machine_.link),
        memory_(machine_.memory),
        now_(now),
        paused_(now.paused.has_value()) {}

  Step run(const Event& event);

  // on() handles a (phase, event) pair. next() returns the phase's next action, or none after it
  // has changed the phase.
  void on(Idle&, const Resumed&);
  std::optional<Action> next(Idle&);
  void on(Pushing&, const Pushed& pushed) { record(pushed.details); }
  std::optional<Action> next(Pushing&);
  void on(Submitting&, const Submitted& submitted) { adopt(submitted.job, false, {}); }
  void on(Submitting&, const SubmitRejected& rejected);
  void on(Submitting&, const SubmitDeferred& deferred);
  void on(Submitting&, const SubmitUnknown& unknown);
  std::optional<Action> next(Submitting& submitting);
  void on(Searching& searching, const Found& found);
  std::optional<Action> next(Searching&) { return FindJobs{attempt().number}; }
  void on(Polling& polling, const Polled& polled);
  void on(Polling& polling, const Completed&) { remove_first(polling.duplicates); }
  void on(Polling& polling, const Unreachable& unreachable);
  std::optional<Action> next(Polling& polling);
  void on(Ended& ended, const Polled& polled);
  void on(Ended& ended, const Found& found);
  std::optional<Action> next(Ended& ended);
  void on(Fetching&, const Fetched& fetched);
  void on(Fetching&, const UpdateRejected& rejected);
  void on(Fetching&, const Checkpointed& stopped);
  std::optional<Action> next(Fetching&) { return FetchUpdate{attempt().number}; }
  void on(Closing& closing, const Completed&);
  void on(Closing& closing, const Found& found);
  void on(Closing& closing, const Polled& polled);
  void on(Closing& closing, const Unreachable& unreachable);
  void on(Closing& closing, const AuthRequired& required);
  std::optional<Action> next(Closing& closing);
  std::optional<Action> next(Finished&) { return Finish{}; }
  template <class AnyPhase>
  void on(AnyPhase&, const TimerFired&) {}
  template <class AnyPhase>
  void on(AnyPhase&, const Unreachable& unreachable) {
    retry_later(unreachable);
  }
  template <class AnyPhase>
  void on(AnyPhase&, const AuthRequired& required) {
    wait_for_credential(required);
  }

 private:
  // The link.
  void update_link(const Event& event);
  void retry_later(const Unreachable& unreachable);
  void wait_for_credential(const AuthRequired& required);
  Action wait_for_user();
  bool must_wait_to_submit();
  void no_outage();
  Sleep sleep(Nanoseconds duration) const;

  // The attempt.
  const history::Attempt& attempt() const { return known_.attempts.back(); }
  bool attempt_is_open() const { return !known_.attempts.empty() && !attempt().failure; }
  void open_attempt();
  bool submission_is_unknown() const;
  int count_unknown_submission();
  void adopt(const JobId& job, bool adopted, std::vector<JobId> duplicates);
  void watch(const JobId& job, std::vector<JobId> duplicates);
  Nanoseconds pause_of(const JobWatch& watch) const;
  void close(AttemptFailure failure);
  static bool best_effort(const Closing& closing) {
    return closing.failure && closing.failure->best_effort_cleanup;
  }
  void record_failure(std::optional<AttemptFailure> failure);
  void give_up(const std::string& reason);
  void forget_attempt();
  // Removes every entry of the first job.
  static void remove_first(std::vector<JobId>& jobs) {
    if (!jobs.empty()) std::erase(jobs, JobId(jobs.front()));
  }

  // The deadline.
  bool time_may_end_it(const Event& event) const;
  std::optional<std::string> time_is_up() const;
  void end_for_time(const std::string& reason);

  void enter(Phase phase);
  void record(history::Event event) { record(attempt().number, std::move(event)); }
  void record(int number, history::Event event);

  const FacilityPolicy& policy_;
  FacilityMachine machine_;
  history::FacilityState& known_;
  Link& link_;
  AttemptMemory& memory_;
  const Now& now_;
  bool paused_;
  Nanoseconds wait_{0};  // the pause before the next action
  std::vector<Record> records_;
  std::string_view cause_;
  std::vector<PhaseChange> path_;
};

}  // namespace xffl::facility
