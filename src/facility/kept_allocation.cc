#include "xffl/facility/kept_allocation.h"

#include <algorithm>

#include "xffl/base/error.h"
#include "xffl/plan/facility_layout.h"

namespace xffl::facility {
namespace {

// The job of the attempt accepted in a round.
struct AcceptedJob {
  int attempt = 0;
  JobId job;
};
std::optional<AcceptedJob> accepted_job(int round, const StateOf& state_of) {
  if (round < 1) return std::nullopt;
  const history::FacilityState state = state_of(round);
  if (!state.accepted) return std::nullopt;
  for (const history::Attempt& attempt : state.attempts)
    if (attempt.number == state.accepted->attempt && !attempt.job_id.empty())
      return AcceptedJob{attempt.number, JobId(attempt.job_id)};
  return std::nullopt;
}

std::optional<AttemptNumber> first_of_accepted(int round, const StateOf& state) {
  const auto accepted = accepted_job(round, state);
  if (!accepted) return std::nullopt;
  return first_attempt({round, accepted->attempt}, accepted->job, state);
}

// The round of the facility's last job in this run: the last round, or the evaluation after it.
int last_jobs_round(const config::Experiment& experiment, const config::Facility& facility) {
  const bool evaluates = experiment.policy.evaluate_last && !facility.validation.empty();
  return experiment.rounds + (evaluates ? 1 : 0);
}

// A listing is untrusted. A file whose name is no path for xffl stays until the removal of its
// folder.
bool is_child_name(const std::string& name) {
  constexpr size_t kLongest = 255;  // bytes, of the usual file systems
  return !name.empty() && name.size() <= kLongest && name != "." && name != ".." &&
         std::none_of(name.begin(), name.end(), [](char c) {
           const auto byte = static_cast<unsigned char>(c);
           return byte < 0x20 || byte == 0x7f || c == '/';
         });
}

}  // namespace

std::optional<RemotePath> next_attempt_folder(const config::Experiment& experiment,
                                              const plan::FacilityPlan& facility, int round) {
  const config::Facility& settings = experiment.facility(facility.facility);
  if (settings.shape().keep_allocation.count() == 0 ||
      round >= last_jobs_round(experiment, settings))
    return std::nullopt;
  return plan::attempt_folder(facility, round + 1, 1);
}

std::optional<submit::KeptAllocation> kept_allocation_of(const plan::FacilityPlan& facility,
                                                         int round, const StateOf& state) {
  const auto accepted = accepted_job(round, state);
  if (!accepted) return std::nullopt;
  return submit::KeptAllocation{accepted->job,
                                plan::attempt_folder(facility, round, accepted->attempt)};
}

std::optional<submit::KeptAllocation> kept_allocation_for(const config::Experiment& experiment,
                                                          const plan::FacilityPlan& facility,
                                                          int round, int attempt,
                                                          const StateOf& state) {
  if (attempt != 1 || !next_attempt_folder(experiment, facility, round - 1)) return std::nullopt;
  return kept_allocation_of(facility, round - 1, state);
}

AttemptNumber first_attempt(AttemptNumber now, const JobId& job, const StateOf& state) {
  while (now.attempt == 1) {
    const auto before = accepted_job(now.round - 1, state);
    if (!before || before->job != job) break;
    now = {now.round - 1, before->attempt};
  }
  return now;
}

void remove_round(remote::Session& session, const plan::FacilityPlan& facility, int old, int newest,
                  const StateOf& state, const std::stop_token& stop) {
  const auto first = first_of_accepted(newest, state);
  if (first && first->round == old) {
    const RemotePath folder = plan::round_folder(facility.folder, old);
    const RemotePath kept = plan::attempt_folder(facility, old, first->attempt);
    for (const std::string& name : session.list(folder))
      if (name != kept.filename() && is_child_name(name)) session.remove_tree(folder / name, stop);
    session.remove_tree(kept / plan::kOutFolder, stop);
  } else {
    session.remove_tree(plan::round_folder(facility.folder, old), stop);
  }
  const auto before = first_of_accepted(newest - 1, state);
  if (before && before != first && before->round < old)
    session.remove_tree(plan::round_folder(facility.folder, before->round), stop);
}

}  // namespace xffl::facility
