// The script that a facility's scheduler runs for one attempt.
#pragma once

#include <optional>
#include <string>

#include "xffl/config/experiment.h"
#include "xffl/facility/services.h"
#include "xffl/history/run_history.h"
#include "xffl/job/job_spec.h"

namespace xffl::facility {

/// Renders the facility's template. `next_folder`: of the attempt that may take the kept allocation
/// (next_attempt_folder()). Throws kConfig with the template's line.
std::string job_script(const config::Facility& facility, const job::JobSpec& spec,
                       const RemotePath& folder, const Programs& programs,
                       const std::optional<RemotePath>& next_folder = {});

struct RenderedScript {
  int round = 1;
  int attempt = 1;
  bool evaluates = false;  // after the last round: the job evaluates the last model
  std::string job_name;
  RemotePath folder;          // at the facility, with job.json in it when the script runs
  RemotePath model_folder;    // at the facility: the round's input model
  RemotePath adapter_folder;  // with LoRA: the input adapter of that model; else empty
  std::string script;         // byte for byte the submitted script
};

/// Renders the script of `facility` in `round` (empty: the one in progress or next), for the
/// attempt that is open there, else for the next one; the round after the last is the evaluation.
/// Reaches no facility; reads a template file of the project, if any. Throws kNotFound for an
/// unknown facility or a round beyond the last, kConfig for a template's mistakes.
RenderedScript render_script(const config::Experiment& experiment,
                             const history::RunState& run_state, const FacilityName& facility,
                             std::optional<int> round, const Programs& programs);

/// A state for a run that does not exist yet: its folders and nonces are those of no run.
history::RunState preview_state();

}  // namespace xffl::facility
