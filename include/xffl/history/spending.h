// Node-seconds that a run's jobs have used and may still use: the figure that budgets compare.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <utility>

#include "xffl/base/clock.h"
#include "xffl/base/names.h"
#include "xffl/history/events.h"

namespace xffl::history {

/// An upper bound from the journal's events, in their order. The figure of a job:
///
///   - from the intended submission on: nodes * walltime, also while a cancellation is unconfirmed;
///   - after the attempt: the sum over its starts as in the ledger (xffl/usage/ledger.h), of a
///     killed start 15 s more, and of an allocation on offer the time of the offer; all starts
///     together at most nodes * the time since the submission, by this machine's clock and 15 s
///     more, or nodes * walltime if that is more; for a last start that may go on, nodes * walltime
///     are added;
///   - without times of the job, or when the attempt ended before its job did: nodes * walltime; 0
///     when the job did not start.
///
/// The memory holds the open attempts only. The bound has three exceptions: a job without a
/// walltime, a job of an earlier release (its intended submission names no nodes), and the time
/// between a job's report and its end.
class Spending {
 public:
  void add(const RecordedEvent& recorded);

  double node_seconds(const FacilityName& facility) const;
  double node_seconds() const;  // of all facilities
  /// The facility waits, by FacilityPaused::by_budget.
  bool is_paused(const FacilityName& facility) const { return paused_.contains(facility); }
  /// A user resumed the facility after such a pause: its next submission may exceed the budget.
  bool may_exceed(const FacilityName& facility) const { return granted_.contains(facility); }

  /// The node-seconds that the attempt's intended submission has reserved; 0: none.
  double reserved(const FacilityName& facility, int round, int attempt) const;

 private:
  // The job of an attempt; a kept allocation passes from one attempt to the next.
  struct Job {
    JobId id;  // empty: no answer to the submission
    double nodes = 0;
    double reserved = 0;      // node-seconds of the whole job
    double keep_seconds = 0;  // of the offer after the report
    double used_before = 0;   // by earlier attempts of the allocation
    double last_end = 0;      // of the work before this attempt, by the facility's clock
    std::optional<Clock::UtcTime> since;  // the intended submission, by this machine's clock
    std::optional<double> used;           // the attempt has ended
    bool is_cancelling = false;
    bool is_offered = false;

    double bound() const;
  };
  using AttemptKey = std::pair<int, int>;  // round and attempt
  struct Facility {
    double closed = 0;
    std::map<AttemptKey, Job> jobs;
  };

  template <class Other>
  void on(const EventScope&, const Other&) {}
  void on(const EventScope& scope, const SubmitIntended& intended);
  void on(const EventScope& scope, const Submitted& submitted);
  void on(const EventScope& scope, const CancelIntended&);
  void on(const EventScope& scope, const CancelConfirmed&);
  void on(const EventScope& scope, const AttemptFailed& failed);
  void on(const EventScope& scope, const UpdateAccepted& update);
  void on(const EventScope& scope, const FacilityPaused& paused);
  void on(const EventScope& scope, const FacilityResumed& resumed);

  Job* find(const EventScope& scope);
  void end(const EventScope& scope, const std::optional<job::JobUsage>& usage,
           std::optional<double> report_seconds, bool may_run);
  void close(const EventScope& scope);
  /// The node-seconds that the job's starts can have used until the present event.
  double most_used(const Job& job) const;

  std::map<FacilityName, Facility> facilities_;
  std::set<FacilityName> paused_, granted_;
  std::optional<Clock::UtcTime> now_;  // of the present event; none: not on record
};

}  // namespace xffl::history
