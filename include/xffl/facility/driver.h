// The driver of one facility's part of one round: it runs the state machine (machine.h) and records
// the events.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "xffl/facility/context.h"
#include "xffl/facility/machine.h"

namespace xffl::facility {

// Exactly one field has a value.
struct FacilityOutcome {
  std::optional<history::Accepted> accepted;
  std::string missing;  // the reason why the facility has no update in this round
};

/// The experiment's settings for the machine; the driver adds `expected_training` and `seed`.
FacilityPolicy facility_policy(const config::Experiment& experiment,
                               const config::Facility& facility,
                               std::chrono::milliseconds settle_time);

// The script of an attempt, at the facility, for a submission by hand.
struct StagedScript {
  int round = 1;
  int attempt = 1;
  std::string job_name;
  RemotePath folder;    // of the attempt; holds the script, plan::kStagedScript
  std::string command;  // submits the script, in a shell at the facility
  JobId job;            // the attempt has this job already: nothing was staged, `command` is empty
};

class FacilityDriver {
 public:
  FacilityDriver(Context& context, const plan::RoundPlan& plan, const plan::FacilityPlan& facility);

  ~FacilityDriver();

  /// Blocks until the driver accepts the facility's update or gives the facility up. A failure of
  /// the facility is an outcome, not an exception. The round's deadline also ends an action under
  /// way, a transfer included: run() returns at most 20 s after the deadline, also for a facility
  /// that answers slowly or without end. Only the check of an accepted update's files and the fetch
  /// of a damaged one have at least 120 s each; the hashing of the files has no limit. Throws
  /// kCancelled on `stop` (the facility's job keeps running), kIo for a failure of this machine,
  /// kConfig for a mistake in the project.
  FacilityOutcome run(std::stop_token stop);

  /// Does the work of run() ahead of the submission: opens an attempt where none is open, pushes
  /// its input and records the submission as intended. Then writes the job's script beside the
  /// input, in place of the submission. A later run() treats the attempt as one whose submission
  /// was not answered: it searches for the job by name, and submits the script when there is none.
  /// Repeats itself without harm. Throws kUsage (the facility has no queue manager, is paused, or
  /// has no job left in this round), kRemote and kAuth at the first failure of the link, kCancelled
  /// on `stop`.
  StagedScript stage(std::stop_token stop);

  /// Cancels the open attempt's job, if there is one, and records the attempt as failed, which does
  /// not count against policy.max_attempts. Throws kRemote when the facility does not answer,
  /// kCancelled on `stop`; the cancellation stays on record for repeat_cancel().
  void cancel(const std::string& reason, std::stop_token stop);
  /// Repeats the cancellations that the facility has not answered. Throws kRemote, kAuth, and
  /// kCancelled on `stop`.
  void repeat_cancel(std::stop_token stop);

  /// Whether the open attempt's job has reported, as far as the facility answers: run() fetches its
  /// update.
  bool has_report(std::stop_token stop);

  /// Releases the kept allocation. Best effort: the allocation expires by itself.
  void release_allocation();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// The updates that the round needs now: a facility that has left the run at once is no member any
/// more, unless its update was accepted before. At least 1.
int quorum_now(const Context& context, const plan::RoundPlan& plan);

// A cancellation that the facility has not confirmed.
struct Leftover {
  int round = 0;
  std::string job_id;  // empty: it is unknown whether a job exists
  std::string problem;
};
/// Repeats the cancellations that the facility has not confirmed, in the rounds before `before`,
/// oldest first, for no longer than `longest` if given. Returns the cancellations that are still
/// unconfirmed. Throws kCancelled on `stop`.
std::vector<Leftover> repeat_cancellations(Context& context, const FacilityName& name, int before,
                                           std::stop_token stop,
                                           std::optional<std::chrono::seconds> longest = {});

}  // namespace xffl::facility
