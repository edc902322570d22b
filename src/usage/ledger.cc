#include "xffl/usage/ledger.h"

#include <algorithm>
#include <cmath>
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
      if (is_last) add_energy(row, attempt);
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
    idle.gpu_energy_joules = std::nullopt;
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
    add_energy(row, attempt);
    ledger_.rows.push_back(row);
  }

  // A report comes from a facility: more than a GPU can use is no measurement.
  static void add_energy(Row& row, const Attempt& attempt) {
    constexpr double kMostWatts = 2000;
    if (!attempt.report || attempt.report->gpu_energy_joules == 0) return;
    const auto joules = static_cast<double>(attempt.report->gpu_energy_joules);
    const double gpus = attempt.report->world_size;
    if (joules <= kMostWatts * gpus * (attempt.report->total_seconds + 1))
      row.gpu_energy_joules = joules;
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

// The rows of one job, with what the accounting has on record of it.
class AccountedJob {
 public:
  /// `base`: a row of the job's first attempt, without times.
  AccountedJob(const Row& base, std::vector<Row*> rows,
               std::vector<const submit::AccountedStart*> starts)
      : base_(base), rows_(std::move(rows)), starts_(std::move(starts)) {}

  // Returns the starts without a row.
  std::vector<Row> apply() {
    const bool is_kept = std::any_of(rows_.begin(), rows_.end(), [&](const Row* row) {
      return row->outcome == Outcome::kIdle || row->attempt != rows_.front()->attempt ||
             row->round != rows_.front()->round;
    });
    if (is_kept) {
      if (starts_.size() == 1) share(*starts_.front());
      return {};
    }
    const std::vector<Row*> row_of_start = match();
    std::vector<Row> missing;
    for (size_t i = 0; i < starts_.size(); ++i) {
      Row own = base_;
      Row& row = row_of_start[i] == nullptr ? own : *row_of_start[i];
      if (starts_.size() > 1) row.restart = static_cast<int>(i);
      replace(row, *starts_[i]);
      if (row_of_start[i] == nullptr) missing.push_back(std::move(own));
    }
    return missing;
  }

 private:
  // The script begins after the start on record, when the nodes are set up.
  static constexpr double kSetUpSeconds = 600;

  static Clock::UtcTime our_time(const Row& row, int64_t seconds) {
    return Clock::UtcTime(
        std::chrono::duration_cast<Clock::UtcTime::duration>(std::chrono::duration<double>(
            static_cast<double>(seconds) - row.clock_offset.value_or(0))));
  }

  // The row of each start, or null: the start nearest to the begin of the row's script; a row
  // without times takes the first start that is left.
  std::vector<Row*> match() const {
    std::vector<Row*> row_of_start(starts_.size(), nullptr);
    const auto late = [&](const Row& row, size_t i) {
      return std::chrono::duration<double>(*row.start - our_time(row, starts_[i]->start)).count();
    };
    for (Row* row : rows_) {
      if (!row->start) continue;
      std::optional<size_t> best;
      for (size_t i = 0; i < starts_.size(); ++i) {
        const double seconds = late(*row, i);
        if (row_of_start[i] != nullptr || seconds < -kSlack || seconds > kSetUpSeconds) continue;
        if (!best || std::abs(seconds) < std::abs(late(*row, *best))) best = i;
      }
      if (best) row_of_start[*best] = row;
    }
    for (Row* row : rows_)
      if (const auto free = std::find(row_of_start.begin(), row_of_start.end(), nullptr);
          !row->start && free != row_of_start.end())
        *free = row;
    return row_of_start;
  }

  static void replace(Row& row, const submit::AccountedStart& start) {
    row.start = our_time(row, start.start);
    if (row.gpus && row.nodes && *row.nodes > 0) row.gpus = *row.gpus / *row.nodes * start.nodes;
    row.nodes = start.nodes;
    if (!start.end) return;
    row.end = our_time(row, *start.end);
    row.elapsed = static_cast<double>(*start.end - start.start);
    row.source = Source::kAccounting;
    add_units(row, start);
  }

  static void add_units(Row& row, const submit::AccountedStart& start) {
    if (start.energy_joules) row.energy_joules = static_cast<double>(*start.energy_joules);
    if (start.billing)
      row.billing_hours = *start.billing * static_cast<double>(*start.end - start.start) / 3600;
  }

  void share(const submit::AccountedStart& start) {
    if (!start.end) return;
    double known = 0;
    for (const Row* row : rows_) {
      if (!row->elapsed) return;
      known += *row->elapsed;
    }
    const double rest = static_cast<double>(*start.end - start.start) - known;
    if (rest < -kSlack) return;  // the times contradict each other
    for (Row* row : rows_) row->source = Source::kAccounting;
    *rows_.back()->elapsed += std::max(0.0, rest);
    rows_.back()->end = our_time(*rows_.back(), *start.end);
    add_units(*rows_.back(), start);
  }

  static constexpr double kSlack = 30;  // of the clock of the login node and of the nodes

  const Row& base_;
  std::vector<Row*> rows_;
  std::vector<const submit::AccountedStart*> starts_;
};

using JobRows = std::map<std::pair<FacilityName, JobId>, Row>;

// A row of each job's first attempt, without times: of a start that left no trace.
JobRows base_rows(const std::vector<const Attempt*>& attempts, const GpusPerNode& gpus) {
  JobRows rows;
  for (const Attempt* attempt : attempts) {
    Row row;
    row.facility = attempt->facility;
    row.round = attempt->round;
    row.attempt = attempt->number;
    row.job = JobId(attempt->job);
    row.submit = attempt->submitted;
    row.outcome = attempt->ended ? Outcome::kLost : Outcome::kOpen;
    if (attempt->usage) {
      row.clock_offset = attempt->usage->clock_offset;
      row.clock_error = attempt->usage->clock_error;
    }
    if (const auto per_node = gpus.find(row.facility); per_node != gpus.end()) {
      row.nodes = 1;
      row.gpus = per_node->second;
    }
    rows.emplace(std::pair(row.facility, row.job), row);
  }
  return rows;
}

void apply(Ledger& ledger, const JobRows& bases, const Accounting& accounting) {
  std::map<std::pair<FacilityName, JobId>, std::vector<const submit::AccountedStart*>> by_job;
  for (const auto& [facility, starts] : accounting)
    for (const submit::AccountedStart& start : starts)
      by_job[{facility, start.job}].push_back(&start);
  std::map<std::pair<FacilityName, JobId>, std::vector<Row*>> known;
  for (Row& row : ledger.rows) known[{row.facility, row.job}].push_back(&row);
  std::vector<Row> without_row;
  for (auto& [job, starts] : by_job) {
    const auto base = bases.find(job);
    if (base == bases.end()) continue;
    for (Row& row : AccountedJob(base->second, known[job], std::move(starts)).apply())
      without_row.push_back(std::move(row));
  }
  ledger.rows.insert(ledger.rows.end(), without_row.begin(), without_row.end());
}

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
  if (row.energy_joules) total.energy_joules = total.energy_joules.value_or(0) + *row.energy_joules;
  if (row.gpu_energy_joules) {
    total.gpu_energy_joules = total.gpu_energy_joules.value_or(0) + *row.gpu_energy_joules;
    ++total.gpu_energy_rows;
  }
  if (row.billing_hours) total.billing_hours = total.billing_hours.value_or(0) + *row.billing_hours;
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

Ledger make_ledger(const std::vector<history::StoredEvent>& events, const GpusPerNode& gpus,
                   const Accounting& accounting) {
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
  apply(ledger, base_rows(attempts, gpus), accounting);
  return ledger;
}

}  // namespace xffl::usage
