// The node-hour ledger: what the jobs of a run used at its facilities, one row per start of a job.
//
// A ledger is computed from the journal, and from the schedulers' accounting when a user has asked
// for it. A requeued job has a row per start. An allocation
// that stays for later attempts has a row per attempt, from the moment when the attempt took the
// allocation, and rows for its idle time between them.
//
// A duration is a difference of two times of one clock. A negative difference counts as 0 and as a
// clock anomaly. An absent value is not known; it is never 0, and each sum counts the rows that it
// lacks.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "xffl/base/clock.h"
#include "xffl/base/names.h"
#include "xffl/config/experiment.h"
#include "xffl/history/store.h"
#include "xffl/usage/accounting.h"

namespace xffl::usage {

enum class Outcome {
  kOpen,        // the attempt has not ended
  kUsed,        // the attempt's update was accepted, or a later one continued its checkpoint
  kLost,        // no update was accepted, or a requeue ended this start
  kIdle,        // a kept allocation waited for its next attempt
  kEvaluation,  // the attempt measured a model
};
/// "open", "used", "lost", "idle", "evaluation".
std::string_view name_of(Outcome outcome);

/// The origin of a row's end and elapsed time, the best one first.
enum class Source {
  kAccounting,  // the scheduler's accounting
  kJob,         // the times that the job's script wrote, and the duration in its report
  kBounded,     // a killed job: its last heartbeat; the true end is at most 15 s later
};
/// "accounting", "job", "bounded".
std::string_view name_of(Source source);

struct Row {
  FacilityName facility;
  int round = 0;
  int attempt = 0;
  JobId job;
  int restart = 0;  // requeues of the job before this start
  /// By the coordinator's clock: the facility's time minus `clock_offset`. A time of the facility
  /// without a known offset is shown as it came.
  std::optional<Clock::UtcTime> submit, start, end;
  std::optional<int> nodes;
  std::optional<int> gpus;        // of all nodes
  std::optional<double> elapsed;  // seconds, by the facility's clock alone
  Outcome outcome = Outcome::kOpen;
  std::optional<Source> source;                     // absent: nothing of this start is recorded
  std::optional<double> clock_offset, clock_error;  // seconds, the facility's minus ours
  /// The trainer's measure of its GPUs, without the rest of the nodes; absent where the report has
  /// none, or more than a GPU can use.
  std::optional<double> gpu_energy_joules;
  // Of the accounting only.
  std::optional<double> energy_joules;  // of all nodes
  std::optional<double> billing_hours;  // the site's units

  std::optional<double> node_seconds() const;
  std::optional<double> gpu_seconds() const;
};

/// A sum over rows, and the number of rows whose value is not known.
struct Amount {
  double seconds = 0;
  int unknown = 0;
};

struct Total {
  int starts = 0;
  Amount node_seconds, gpu_seconds;
  std::map<Outcome, Amount> node_seconds_by_outcome;
  std::map<Source, int> starts_by_source;
  // Sums over the rows that have a value; absent: no row has one.
  std::optional<double> energy_joules, gpu_energy_joules, billing_hours;
  int gpu_energy_rows = 0;
};

struct Ledger {
  std::vector<Row> rows;    // in the order of the submissions; starts of a job by their time
  int clock_anomalies = 0;  // differences that were negative and count as 0

  Total total() const;
  std::map<FacilityName, Total> by_facility() const;
};

/// GPUs per node, where the configuration names them.
using GpusPerNode = std::map<FacilityName, int>;
GpusPerNode gpus_per_node(const config::Experiment& experiment);

/// A start that the accounting has on record counts with the accounting's times; so does a start
/// that left no times. The parts of a kept allocation share the accounting's time: what their sum
/// lacks belongs to the last part. Pure. Throws kCorrupt as history::decode().
Ledger make_ledger(const std::vector<history::StoredEvent>& events, const GpusPerNode& gpus,
                   const Accounting& accounting = {});

}  // namespace xffl::usage
