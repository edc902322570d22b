// The job script that a facility would get next, without asking anybody.
#pragma once

#include <optional>
#include <string>

#include "xffl/config/experiment.h"
#include "xffl/facility/services.h"
#include "xffl/history/run_folder.h"
#include "xffl/history/run_state.h"

namespace xffl::facility {

struct RenderedScript {
  int round = 1;
  int attempt = 1;
  bool evaluates = false;  // after the last round: it measures the last model
  std::string job_name;
  RemotePath folder;        // at the facility, with job.json in it when the script runs
  RemotePath model_folder;  // at the facility: the model that the round starts from
  RemotePath
      adapter_folder;  // with LoRA: the adapter that it starts from, of that model; else empty
  std::string script;  // byte for byte what is submitted
};

/// Renders the script of `facility` in `round` (empty: the one in progress or next), for the
/// attempt that is open there, else for the next one; the round after the last is the evaluation.
/// Pure but for a template of the project's own. Throws kNotFound for an unknown facility or a
/// round beyond the last, kConfig for a template's mistakes.
RenderedScript render_script(const config::Experiment& experiment,
                             const history::RunState& run_state, const FacilityName& facility,
                             std::optional<int> round, const Programs& programs);

/// A history for a run that does not exist yet: its folders and nonces are not those of any run.
history::RunState preview_state();

}  // namespace xffl::facility
