// A whole federation in simulated time: the real step() and the real projection of the journal, a
// coordinator that is killed at any moment, users who repair things late, and an oracle.
#pragma once

#include <functional>
#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

#include "simulated_facility.h"

namespace xffl::test {

struct SimulationResult {
  std::string violation;  // "" when every promise held
  int kills = 0;
  int resumes = 0;            // a user ran `xffl run` or `xffl resume` again
  int extra_trainings = 0;    // beyond one per round and facility
  int evaluations_asked = 0;  // of the last model
  int evaluations = 0;        // ... that were accepted
  int taken = 0;              // attempts that a job took by staying
  int not_unpacked = 0;       // jobs that could not unpack their model
  int pauses = 0;             // by users, after a failed submission
  int departures = 0;         // by users, of whom some end the present round's part at once
  int budget_pauses = 0;      // by budgets of node-hours
  int without_late = 0;       // rounds that ended after their quorum, without another facility
  std::chrono::hours simulated{0};
};

struct SimulationOptions {
  Faults faults;
  double kill = 0.004;    // per action
  double pause = 0.05;    // per failed submission, by a user
  double leave = 0.0005;  // per action: a user lets a facility leave the run, or join it again
  bool fences_work = true;
  bool deadlines = true;
  bool budgets = false;  // of node-hours; Slurm then requeues no job
  bool obeys_budgets = true;
  std::ostream* trace = nullptr;  // every action and record, to understand a seed
  // Changes the coordinator's observations, to show that the oracle notices a wrong coordinator.
  std::function<facility::Event(facility::Event)> distort;
  // Sees every event and the step that answers it.
  std::function<void(const facility::Event&, const facility::Step&)> on_step{};
};

/// An update that passes every check; with `evaluates` an evaluation.
history::UpdateAccepted simulated_update(const std::string& facility, int round, int attempt,
                                         bool evaluates = false);

SimulationResult simulate(uint64_t seed, const SimulationOptions& options = {});

}  // namespace xffl::test
