// A facility that exists in numbers only: its link, its batch system with all the habits that were
// measured of Slurm, its jobs and their claims. Deterministic in its random engine.
#pragma once

#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "xffl/facility/machine.h"

namespace xffl::test {

using facility::Nanoseconds;
using Random = std::mt19937_64;

// How unkind the facility is; probabilities of one event each.
struct Faults {
  double link_lost = 0.03;  // an action that was done or not, and no answer
  double outage = 0.01;     // ... for minutes to days
  double credential_expires = 0.002;
  double submit_stalls = 0.15;  // sbatch times out; the job appears later, or never
  double submit_refused = 0.003;
  double submit_postponed = 0.05;
  double twin_by_hand = 0.02;
  double forgets_fast = 0.3;  // MinJobAge of seconds, no accounting
  double amnesia = 0.002;     // per question: the controller loses its jobs
  double job_fails = 0.05, out_of_memory = 0.005, node_fails = 0.08, requeued = 0.5;
  double walltime = 0.05, checkpoints = 0.05, scancelled = 0.01, bad_update = 0.002;
  double stay_dies = 0.1;      // a job that stays ends without taking its offer back
  double stays = 0.5;          // facilities whose jobs keep their allocation
  double not_unpacked = 0.02;  // a round's first job cannot unpack its model
  double unmounted = 0.01;     // its login node is there without its file system, for hours
};

inline constexpr Faults kNoFaults{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};

class SimulatedFacility {
 public:
  SimulatedFacility(Random& random, Faults faults, Nanoseconds settle_time);

  /// Performs `action` of `round` at `now` and returns its outcome; `offer` is the allocation that
  /// the job of the round before may offer. Time never goes back.
  facility::Event perform(const facility::Action& action, int round, Nanoseconds now,
                          std::optional<submit::KeptAllocation> offer = {});
  void advance(Nanoseconds now);
  /// From now on everything works.
  void calm() { faults_ = kNoFaults; }
  /// A fault of the harness, to see that the oracle notices.
  bool fences_work = true;

  /// The description of a violated promise; empty: none.
  const std::vector<std::string>& violations() const { return violations_; }
  int trainings(int round) const;
  /// Jobs that still hold a claim and run.
  int running() const;
  /// Attempts that a job took by staying.
  int taken() const { return taken_; }
  /// A job has reported on that attempt, and its file system is there.
  bool shows_report(int round, int attempt) const {
    return now_ >= mounted_at_ && reports_.contains({round, attempt});
  }
  /// The coordinator has cancelled it while it waited or ran.
  bool was_told_to_end(const JobId& job) const { return told_to_end_.contains(job); }
  /// Seconds for which its jobs have held their node until now.
  double node_seconds() const;
  int jobs() const { return static_cast<int>(jobs_.size()); }
  /// The times that the attempt's job has written, as the driver reads them.
  job::JobUsage usage(int round, int attempt) const;
  /// Jobs that could not unpack their model.
  int not_unpacked() const { return static_cast<int>(not_unpacked_.size()); }

 private:
  struct Job {
    int number = 0;
    int round = 0, attempt = 0;              // which it trains
    int named_round = 0, named_attempt = 0;  // which it was submitted for
    enum class Phase { kQueued, kRunning, kOver } phase = Phase::kQueued;
    Nanoseconds visible_at{0}, starts_at{0}, ends_at{0}, purged_at{0};
    Nanoseconds began_at{0};  // its allocation
    int handovers = 0;
    submit::JobStatus end;
    bool reports = false, continues = false, requeues = false, claims = false, forgotten = false;
    bool stays = false;  // has reported and waits for the next round's first attempt
    JobId id() const { return JobId(std::to_string(number)); }
  };
  using Key = std::pair<int, int>;  // round, attempt

  bool happens(double probability);
  Nanoseconds between(std::chrono::seconds least, std::chrono::seconds most);
  facility::Event do_it(const facility::Action& action, int round, Nanoseconds now);
  std::optional<facility::Event> do_it_unmounted(const facility::Action& action, Nanoseconds now);
  facility::Event submit(int round, int attempt, Nanoseconds now);
  enum class OfferState { kOffered, kTaken, kClosed };
  /// The state of the kept allocation, if any.
  OfferState* offer_state();
  /// The job whose kept allocation takes `round`, now or before.
  std::optional<JobId> take_offer(int round, Nanoseconds now);
  void stay(Job& job);
  void close_unwanted_offers();
  void enqueue(int round, int attempt, Nanoseconds now, Nanoseconds visible_after);
  void begin(Job& job);
  void leave_node(const Job& job, Nanoseconds when);
  void choose_fate(Job& job);
  void finish(Job& job);
  bool has_earlier_twin(const Job& job) const;
  submit::JobStatus status_of(const JobId& id, Nanoseconds now);
  Job* job(const JobId& id);

  Random& random_;
  Faults faults_;
  Nanoseconds settle_time_;
  bool forgets_fast_;
  Nanoseconds now_{0}, link_back_at_{0}, credential_renewed_at_{0}, mounted_at_{0};
  std::vector<Job> jobs_;
  std::map<Key, int> claims_;  // the job's number; 0: the coordinator's fence
  enum class Answer { kGood, kBad, kToBeContinued };
  std::map<Key, Answer> reports_;
  std::set<Key> not_unpacked_;
  std::map<int, int> trainings_;
  std::map<Key, std::vector<job::JobStart>> starts_;
  Nanoseconds held_{0};  // by jobs that are over
  bool stays_;
  int taken_ = 0;
  std::map<Key, OfferState> offers_;  // by the attempt that was reported on
  std::optional<submit::KeptAllocation> offer_;
  std::set<Key> fenced_;
  std::set<JobId> told_to_end_;
  std::vector<std::string> violations_;
};

}  // namespace xffl::test
