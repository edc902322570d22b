// The parts of a run that federation.cc puts together, and the actions of `xffl pause`, `resume`
// and `cancel`.
#pragma once

#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "xffl/checkpoint/manifest.h"
#include "xffl/facility/context.h"
#include "xffl/history/run_folder.h"
#include "xffl/run/first_models.h"

namespace xffl::run {

// --- The run (federation.cc) -------------------------------------------------------------------

/// The plan of the round in progress or next; none when all rounds are published.
std::optional<plan::RoundPlan> current_plan(const facility::Context& context);

/// Cancels the jobs of the current round and records run_cancelled. Throws kCancelled on `stop`.
void cancel_now(facility::Context& context, std::stop_token stop);

/// Records a kPause or kResume, once (operate.cc).
void set_paused(facility::Context& context, const history::Request& request);

/// Records a kLeave or kJoin, once (operate.cc). Throws kUsage when the last member would leave.
void set_members(facility::Context& context, const history::Request& request);

/// Whether a user has added a facility that `context.experiment` lacks, because the facility is
/// newer in xffl.yaml.
bool knows_all_members(const facility::Context& context);

// --- Round 0 (import_model.cc) -----------------------------------------------------------------

/// Makes round 0, once: the experiment's model as the float32 master and as the model that the
/// facilities get. With LoRA, round 0 holds the adapter and, unchanged, the model under the
/// adapter. Throws kConfig when the experiment's adapter does not match training.lora, and the
/// errors of a damaged model or adapter.
void import_model(facility::Context& context);

// --- A round (run_round.cc) --------------------------------------------------------------------

/// Starts a thread for one facility. While the system refuses the thread, tries again every 10 s,
/// so that a crowded machine delays a facility and does not end the run. Throws kCancelled on
/// `stop`.
std::jthread start_thread(const std::function<void()>& body, Clock& clock, std::stop_token stop);

/// Whether the error of a system call is a lack of file descriptors, of the process or the system.
bool lacks_descriptors(int error_number);

/// Records the plan, once. The deadline of an evaluation counts from this record.
void record_plan(facility::Context& context, const plan::RoundPlan& plan);

/// Runs `plan` from its state in the journal to the published global model. Throws kFailed when a
/// facility is missing and the policy does not allow it, kCancelled on `stop`.
void run_round(facility::Context& context, const plan::RoundPlan& plan, std::stop_token stop);

/// Lets the facilities of the evaluation `plan` evaluate the last global model. Logs a facility
/// without a result and records it as missing, but does not fail. Throws kCancelled on `stop`.
void evaluate_last(facility::Context& context, const plan::RoundPlan& plan, std::stop_token stop);
/// Cancels the jobs of an evaluation that began before policy.evaluate_last became false. Logs a
/// warning for an unreachable facility, whose job keeps running.
void drop_evaluation(facility::Context& context, std::stop_token stop);

/// Cancels the jobs of the round's open attempts, at all facilities side by side, and records
/// `reason`. Throws kRemote or kAuth for an unreachable facility, after the cancellations at all
/// other facilities, and kCancelled on `stop`.
void cancel_round(facility::Context& context, const plan::RoundPlan& plan,
                  const std::string& reason, std::stop_token stop);
/// Repeats the cancellations that no facility has confirmed, in rounds up to `last`, at all
/// facilities side by side for 120 s at most. Logs the cancellations that are still unconfirmed,
/// with a remedy.
void cancel_leftovers(facility::Context& context, int last, std::stop_token stop);
/// "start another with `xffl run --new`", the command that ends this run's jobs unless the run has
/// ended, and the key of xffl.yaml with its newest model if a round is published.
std::string advice_of_new_run(const config::Experiment& experiment,
                              const history::RunFolder& folder, const history::RunState& run_state);
/// Whether the experiment has the facility, with slurm.keep_allocation.
bool keeps_allocation(const facility::Context& context, const FacilityName& name);
/// Releases the allocations that jobs of the last round have kept for another one, except at the
/// facilities of `next`; only logs a failure.
void release_allocations(facility::Context& context,
                         const std::optional<plan::RoundPlan>& next = {});
/// Releases the facility's kept allocation; only logs a failure.
void release_allocation(facility::Context& context, const plan::RoundPlan& plan,
                        const FacilityName& name);

// --- From updates to the published model (publish.cc) ------------------------------------------

/// Freezes the participants in the journal, averages their updates into the global model, and
/// publishes the model, each step once. Returns the participants.
std::vector<history::Accepted> publish_round(facility::Context& context,
                                             const plan::RoundPlan& plan,
                                             const std::vector<history::Accepted>& accepted);

history::ParticipantsFrozen participants_of(const std::vector<history::Accepted>& accepted,
                                            const config::Aggregation& settings);
/// The frozen participants' updates among `accepted`, in the frozen order. Throws kCorrupt, naming
/// `round`, when a participant's update or weight is not the frozen one.
std::vector<history::Accepted> frozen_participants(int round,
                                                   const std::vector<history::Participant>& frozen,
                                                   const std::vector<history::Accepted>& accepted,
                                                   const config::Aggregation& settings);

}  // namespace xffl::run
