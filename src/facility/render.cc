#include "xffl/facility/render.h"

#include "job_script.h"
#include "xffl/base/error.h"
#include "xffl/facility/kept_allocation.h"
#include "xffl/plan/facility_layout.h"

namespace xffl::facility {
namespace {

int attempt_of(const history::RunState& run_state, int round, const FacilityName& facility) {
  const auto known = run_state.rounds.find(round);
  if (known == run_state.rounds.end()) return 1;
  const auto state = known->second.facilities.find(facility);
  if (state == known->second.facilities.end()) return 1;
  const history::Attempt* current = state->second.current();
  if (current == nullptr) return 1;
  return current->failure ? current->number + 1 : current->number;
}

}  // namespace

history::RunState preview_state() {
  history::RunState run_state;
  run_state.identity = plan::RunIdentity{RunName("0000"), std::string(32, '0')};
  return run_state;
}

RenderedScript render_script(const config::Experiment& experiment,
                             const history::RunState& run_state, const FacilityName& facility,
                             std::optional<int> round, const Programs& programs) {
  const config::Facility& settings = experiment.facility(facility);
  if (!run_state.identity)
    throw Error(ErrorKind::kNotFound, "the run has no identity yet: its journal is empty");
  plan::Done done = run_state.done();
  // Before the model is imported nobody knows its hash, nor the adapter's.
  const bool adapts = experiment.facilities.front().training.lora.rank > 0;
  if (done.model_sha256.empty()) done.model_sha256 = std::string(64, '0');
  if (adapts && done.adapted_sha256.empty()) done.adapted_sha256 = std::string(64, '1');
  if (round) {
    done.rounds_published = *round - 1;
    done.run_completed = false;
  }
  const auto plan = plan::next_round(experiment, *run_state.identity, done);
  if (!plan || plan->round < 1)
    throw Error(ErrorKind::kNotFound,
                "there is no round " + std::to_string(done.rounds_published + 1) +
                    ": the experiment has " + std::to_string(experiment.rounds));
  RenderedScript rendered;
  rendered.round = plan->round;
  rendered.evaluates = plan->evaluates;
  rendered.attempt = attempt_of(run_state, plan->round, facility);
  for (const plan::FacilityPlan& each : plan->facilities) {
    if (each.facility != facility) continue;
    const job::JobSpec spec =
        plan::job_spec(experiment, *run_state.identity, *plan, each, rendered.attempt);
    rendered.job_name = spec.key.job_name();
    rendered.folder = plan::attempt_folder(each, rendered.attempt);
    rendered.model_folder = adapts ? each.adapted_folder : each.model_folder;
    if (adapts) rendered.adapter_folder = each.model_folder;
    rendered.script = job_script(settings, spec, rendered.folder, programs,
                                 stays_for(experiment, each, plan->round));
  }
  if (rendered.script.empty())
    throw Error(ErrorKind::kNotFound, "facility " + facility.str() +
                                          " has no job left: all rounds are published and it has "
                                          "no data.validation to measure the last model on");
  return rendered;
}

}  // namespace xffl::facility
