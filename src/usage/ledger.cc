#include "xffl/usage/ledger.h"

#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <variant>

#include "xffl/base/error.h"
#include "xffl/history/events.h"
#include "xffl/job/job_times.h"

namespace xffl::usage {
namespace {

struct Attempt {
  int round = 0;
  FacilityName facility;
  int number = 0;
  std::string job;  // empty: no job
  std::optional<Clock::UtcTime> submitted;
  bool evaluates = false;
  bool accepted = false, ended = false, lost = false;
  int64_t checkpointed_steps = 0;
  std::optional<job::JobReport> report;
  std::optional<job::JobUsage> usage;
};

// The attempts with a job, in the order of their submissions.
class Folding {
 public:
  void add(const history::RecordedEvent& recorded) {
    scope_ = recorded.scope;
    time_utc_ = recorded.time_utc;
    std::visit([this](const auto& event) { on(event); }, recorded.event);
  }
  const std::vector<Attempt>& attempts() const { return attempts_; }

  // Whether a later attempt of the round has an accepted update.
  bool is_continued(const Attempt& attempt) const {
    return std::any_of(attempts_.begin(), attempts_.end(), [&](const Attempt& other) {
      return other.round == attempt.round && other.facility == attempt.facility &&
             other.number > attempt.number && other.accepted && !other.lost;
    });
  }

 private:
  template <class Other>
  void on(const Other&) {}
  void on(const history::RoundPlanned& event) {
    if (event.evaluates) evaluations_.insert(scope_.round);
  }
  void on(const history::AttemptOpened&) {
    if (!scope_.facility) return;
    attempt() = Attempt{.round = scope_.round,
                        .facility = *scope_.facility,
                        .number = scope_.attempt,
                        .evaluates = evaluations_.contains(scope_.round)};
  }
  void on(const history::Submitted& event) {
    if (!scope_.facility) return;
    attempt().job = event.job_id.str();
    attempt().submitted = parse_utc(time_utc_);
  }
  void on(const history::AttemptFailed& event) {
    if (!scope_.facility) return;
    attempt().ended = true;
    attempt().checkpointed_steps = event.steps.value_or(0);
    attempt().usage = event.usage;
  }
  void on(const history::UpdateAccepted& event) {
    if (!scope_.facility) return;
    attempt().ended = attempt().accepted = true;
    attempt().report = event.report;
    attempt().usage = event.usage;
  }
  void on(const history::CancelConfirmed&) {
    if (scope_.facility) attempt().ended = true;
  }
  void on(const history::UpdateLost&) {
    if (scope_.facility) attempt().lost = true;
  }

  Attempt& attempt() {
    const auto [found, is_new] =
        index_.try_emplace({scope_.round, *scope_.facility, scope_.attempt}, attempts_.size());
    if (is_new) attempts_.push_back({});
    return attempts_[found->second];
  }

  std::vector<Attempt> attempts_;
  std::map<std::tuple<int, FacilityName, int>, size_t> index_;
  std::set<int> evaluations_;
  history::EventScope scope_;
  std::string time_utc_;
};

class Rows {
 public:
  Rows(const GpusPerNode& gpus, Ledger& ledger) : gpus_(gpus), ledger_(ledger) {}

  // The rows of the starts. `outcome` is the attempt's.
  void add(const Attempt& attempt, Outcome outcome) {
    if (!attempt.usage || (attempt.usage->starts.empty() && attempt.report))
      return add_unrecorded(attempt, outcome);
    const std::vector<job::JobStart>& starts = attempt.usage->starts;
    for (size_t i = 0; i < starts.size(); ++i) {
      const bool is_last = i + 1 == starts.size();
      add_idle_before(starts[i], attempt);
      Row row = row_of(attempt, starts[i]);
      row.outcome = is_last ? outcome : Outcome::kLost;
      const std::optional<job::WorkEnd> end = job::end_of_work(
          starts[i],
          is_last && attempt.report ? std::optional(attempt.report->total_seconds) : std::nullopt);
      if (end) {
        row.elapsed = duration(static_cast<double>(starts[i].start), end->seconds);
        row.end = our_time(end->seconds, *attempt.usage);
        row.source = end->is_bounded ? Source::kBounded : Source::kJob;
      }
      ledger_.rows.push_back(row);
      last_work_[{attempt.facility, starts[i].job}] = {ledger_.rows.back(), end};
    }
  }

 private:
  // An attempt of an allocation that another attempt kept for it.
  void add_idle_before(const job::JobStart& start, const Attempt& attempt) {
    if (start.handover == 0) return;
    const auto before = last_work_.find({attempt.facility, start.job});
    if (before == last_work_.end()) return;
    const auto& [row, end] = before->second;
    Row idle = row;
    idle.outcome = Outcome::kIdle;
    idle.start = row.end;
    idle.end = our_time(static_cast<double>(start.start), *attempt.usage);
    idle.elapsed = std::nullopt;
    idle.source = std::nullopt;
    if (end) {
      idle.elapsed = duration(end->seconds, static_cast<double>(start.start));
      idle.source = Source::kJob;
    }
    ledger_.rows.push_back(idle);
  }

  // A job without recorded times: of another template, or killed before its script began.
  void add_unrecorded(const Attempt& attempt, Outcome outcome) {
    Row row;
    row.facility = attempt.facility;
    row.round = attempt.round;
    row.attempt = attempt.number;
    row.job = JobId(attempt.job);
    row.submit = attempt.submitted;
    row.outcome = outcome;
    if (attempt.report && attempt.report->total_seconds > 0) {
      row.restart = attempt.report->restarts;
      row.elapsed = attempt.report->total_seconds;
      row.source = Source::kJob;
      if (attempt.report->nodes > 0) set_nodes(row, static_cast<int>(attempt.report->nodes));
    }
    ledger_.rows.push_back(row);
  }

  Row row_of(const Attempt& attempt, const job::JobStart& start) const {
    Row row;
    row.facility = attempt.facility;
    row.round = attempt.round;
    row.attempt = attempt.number;
    row.job = JobId(start.job.empty() ? attempt.job : start.job);
    row.restart = start.restart;
    row.submit = attempt.submitted;
    row.start = our_time(static_cast<double>(start.start), *attempt.usage);
    set_nodes(row, start.nodes);
    row.clock_offset = attempt.usage->clock_offset;
    row.clock_error = attempt.usage->clock_error;
    return row;
  }

  void set_nodes(Row& row, int nodes) const {
    row.nodes = nodes;
    const auto gpus = gpus_.find(row.facility);
    if (gpus != gpus_.end()) row.gpus = nodes * gpus->second;
  }

  static Clock::UtcTime our_time(double seconds, const job::JobUsage& usage) {
    return Clock::UtcTime(std::chrono::duration_cast<Clock::UtcTime::duration>(
        std::chrono::duration<double>(seconds - usage.clock_offset.value_or(0))));
  }

  double duration(double begin, double end) {
    if (end >= begin) return end - begin;
    ++ledger_.clock_anomalies;
    return 0;
  }

  struct Work {
    Row row;
    std::optional<job::WorkEnd> end;
  };

  const GpusPerNode& gpus_;
  Ledger& ledger_;
  std::map<std::pair<FacilityName, std::string>, Work> last_work_;  // by facility and job
};

void add(Amount& amount, const std::optional<double>& seconds) {
  if (seconds)
    amount.seconds += *seconds;
  else
    ++amount.unknown;
}

void add(Total& total, const Row& row) {
  if (row.outcome != Outcome::kIdle) ++total.starts;
  add(total.node_seconds, row.node_seconds());
  add(total.gpu_seconds, row.gpu_seconds());
  add(total.node_seconds_by_outcome[row.outcome], row.node_seconds());
  if (row.source) ++total.starts_by_source[*row.source];
}

}  // namespace

std::string_view name_of(Outcome outcome) {
  switch (outcome) {
    case Outcome::kOpen:
      return "open";
    case Outcome::kUsed:
      return "used";
    case Outcome::kLost:
      return "lost";
    case Outcome::kIdle:
      return "idle";
    case Outcome::kEvaluation:
      return "evaluation";
  }
  return "";
}

std::string_view name_of(Source source) {
  switch (source) {
    case Source::kAccounting:
      return "accounting";
    case Source::kJob:
      return "job";
    case Source::kBounded:
      return "bounded";
  }
  return "";
}

std::optional<double> Row::node_seconds() const {
  if (!nodes || !elapsed) return std::nullopt;
  return *nodes * *elapsed;
}

std::optional<double> Row::gpu_seconds() const {
  if (!gpus || !elapsed) return std::nullopt;
  return *gpus * *elapsed;
}

Total Ledger::total() const {
  Total total;
  for (const Row& row : rows) add(total, row);
  return total;
}

std::map<FacilityName, Total> Ledger::by_facility() const {
  std::map<FacilityName, Total> totals;
  for (const Row& row : rows) add(totals[row.facility], row);
  return totals;
}

GpusPerNode gpus_per_node(const config::Experiment& experiment) {
  GpusPerNode gpus;
  for (const config::Facility& facility : experiment.facilities)
    if (const int number = facility.shape().gpus_per_node; number > 0) gpus[facility.name] = number;
  return gpus;
}

Ledger make_ledger(const std::vector<history::StoredEvent>& events, const GpusPerNode& gpus) {
  Folding folding;
  for (const history::StoredEvent& event : events) folding.add(history::decode(event));
  Ledger ledger;
  Rows rows(gpus, ledger);
  std::vector<const Attempt*> attempts;
  for (const Attempt& attempt : folding.attempts())
    if (!attempt.job.empty()) attempts.push_back(&attempt);
  std::stable_sort(attempts.begin(), attempts.end(),
                   [](const Attempt* a, const Attempt* b) { return a->submitted < b->submitted; });
  for (const Attempt* attempt : attempts) {
    const bool is_kept = (attempt->accepted && !attempt->lost) ||
                         (attempt->checkpointed_steps > 0 && folding.is_continued(*attempt));
    rows.add(*attempt, !attempt->ended      ? Outcome::kOpen
                       : !is_kept           ? Outcome::kLost
                       : attempt->evaluates ? Outcome::kEvaluation
                                            : Outcome::kUsed);
  }
  return ledger;
}

}  // namespace xffl::usage
