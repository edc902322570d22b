// One facility's part of one round: drives its state machine (machine.h) and records its events.
#pragma once

#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "xffl/facility/context.h"
#include "xffl/facility/machine.h"

namespace xffl::facility {

// Exactly one of the two is set.
struct FacilityOutcome {
  std::optional<history::Accepted> accepted;
  std::string missing;  // why there is no update from it in this round
};

/// The experiment's settings for the machine; `expected_training` and `seed` are the driver's.
FacilityPolicy facility_policy(const config::Experiment& experiment,
                               const config::Facility& facility,
                               std::chrono::milliseconds settle_time);

class FacilityDriver {
 public:
  FacilityDriver(Context& context, const plan::RoundPlan& plan, const plan::FacilityPlan& facility);

  ~FacilityDriver();

  /// Blocks until the facility's update is accepted or given up. Throws kCancelled on `stop` (its
  /// job goes on), and what is wrong with this machine (kIo) or the project (kConfig); a facility's
  /// own failure is an outcome, not an error.
  FacilityOutcome run(std::stop_token stop);

  /// Cancels the open attempt's job, if there is one, and records the attempt as failed. If the
  /// facility does not answer, the cancellation stays on record for repeat_cancel(). Throws kRemote
  /// then.
  void cancel(const std::string& reason);
  /// Repeats the cancellations that the facility has not answered. Throws kRemote, kAuth, and
  /// kCancelled on `stop`.
  void repeat_cancel(std::stop_token stop);

  /// Lets a job go that stays for the next round.
  void release_allocation();

 private:
  history::FacilityState known() const {
    return context_.history.facility(plan_.round, facility_.facility);
  }
  history::EventScope scope(int attempt) const {
    return {.round = plan_.round, .facility = facility_.facility, .attempt = attempt};
  }
  Now now() const;
  /// Completes the event with what the machine cannot know, records it and logs it.
  void keep(int attempt, history::Event event);
  void complete(int attempt, history::Event& event);
  void log_event(int attempt, const history::Event& event) const;
  void log_accepted(const history::UpdateAccepted& update) const;
  void log_link(const FacilityMachine& machine);
  void show(const FacilityMachine& machine);
  bool brings_the_archive(const history::Accepted& accepted, std::stop_token stop);
  void sweep_earlier_rounds(std::stop_token stop);
  void end_jobs(const history::Attempt& attempt, std::stop_token stop);

  Context& context_;
  const plan::RoundPlan& plan_;
  const plan::FacilityPlan& facility_;
  struct Parts;
  std::unique_ptr<Parts> parts_;
  FacilityPolicy policy_;
  Clock::MonotonicTime began_;
  Clock::UtcTime began_utc_;
  std::string last_logged_;  // link error
  bool logged_late_ = false;
};

// A round that went on without a facility which could not be told to cancel its job.
struct Leftover {
  plan::RoundPlan plan;
  plan::FacilityPlan facility;
  std::string job_id;  // empty: it is in doubt whether there is one
};
/// Those of the rounds before `before`, oldest first.
std::vector<Leftover> leftovers(const Context& context, const FacilityName& name, int before);

}  // namespace xffl::facility
