// One facility's part of one round: push, submit, wait, fetch, verify; resumable at every step.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <stop_token>
#include <string>

#include "context.h"

namespace xffl::round {

// Exactly one of the two is set.
struct FacilityOutcome {
  std::optional<Accepted> accepted;
  std::string missing;  // why there is no update from it in this round
};

class FacilityRound {
 public:
  FacilityRound(Context& context, const plan::RoundPlan& plan, const plan::FacilityPlan& facility);

  /// Blocks until the facility's update is accepted or given up. Throws kCancelled on `stop` (its
  /// job goes on), and what is wrong with this machine (kIo) or the project (kConfig); a facility's
  /// own failure is an outcome, not an error.
  FacilityOutcome run(std::stop_token stop);

  /// Cancels the open attempt's job, if there is one, and records the attempt as failed.
  void cancel(const std::string& reason);

 private:
  struct Failure {
    std::string reason;
    bool another_attempt_may_help = true;
  };
  enum class Ending { kReported, kNoReport, kDeadline };

  std::optional<Attempt> open_attempt();
  std::optional<Failure> run_attempt(const Attempt& attempt, std::stop_token stop);
  void push(const Attempt& attempt, std::stop_token stop);
  JobId submit(const Attempt& attempt, std::stop_token stop);
  std::optional<JobId> find_submitted(const Attempt& attempt, std::stop_token stop);
  std::optional<JobId> find_other(const Attempt& attempt, const JobId& id, std::stop_token stop);
  void record_submitted(const Attempt& attempt, const JobId& id, bool adopted);
  Ending wait(const Attempt& attempt, const JobId& id, std::stop_token stop);
  std::optional<Failure> accept(const Attempt& attempt, std::stop_token stop);
  Accepted fetch_and_check(const Attempt& attempt, std::stop_token stop);
  void fetch_again_if_damaged(const Accepted& accepted, std::stop_token stop);
  FacilityOutcome give_up(const std::string& reason);

  bool reported(const Attempt& attempt);
  std::chrono::nanoseconds since_first_submission() const;
  bool past_deadline() const;
  void show_progress(const Attempt& attempt);
  std::string output_tail(const Attempt& attempt);
  job::JobSpec spec(const Attempt& attempt) const;
  RemotePath folder(const Attempt& attempt) const {
    return plan::attempt_folder(facility_, attempt.number);
  }
  std::filesystem::path archive() const {
    return context_.folder.facility(plan_.round, facility_.facility);
  }
  uint64_t max_update_bytes() const;
  template <class Body>
  auto with_retries(std::stop_token stop, std::string_view doing, Body&& body);

  Context& context_;
  const plan::RoundPlan& plan_;
  const plan::FacilityPlan& facility_;
  const config::Facility& settings_;
  std::unique_ptr<remote::Session> session_;
  std::unique_ptr<submit::Scheduler> scheduler_;
  Clock::MonotonicTime began_;
  Clock::UtcTime began_utc_;
  std::string last_metrics_line_;
  std::set<JobId> watched_;  // adopted in place of a twin, so that two cannot take turns for ever
};

}  // namespace xffl::round
