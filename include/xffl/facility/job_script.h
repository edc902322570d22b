// The script that a facility's scheduler runs for one attempt.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "xffl/config/experiment.h"
#include "xffl/facility/services.h"
#include "xffl/history/run_history.h"
#include "xffl/job/job_spec.h"

namespace xffl::facility {

/// The batch job's name of an attempt: the name on record in `state`, the facility's state in the
/// round of `key`; before the submission is on record, plan::job_name(). A run that an earlier
/// release began therefore keeps the names of its jobs.
std::string job_name(const plan::RunIdentity& identity, const job::JobKey& key,
                     const history::FacilityState& state);

/// The spec with the paths that the job's nodes see (config::Facility::compute_mounts).
job::JobSpec for_compute_nodes(const config::Facility& facility, job::JobSpec spec);

/// Renders the facility's template for the batch job `job_name`. `next_folder` is the folder of the
/// attempt that may take the kept allocation (next_attempt_folder()). Both folders are the log-in
/// nodes'; the script has those of the compute nodes. Throws kConfig with the template's line.
std::string job_script(const config::Facility& facility, const job::JobSpec& spec,
                       const std::string& job_name, const RemotePath& folder,
                       const Programs& programs, const std::optional<RemotePath>& next_folder = {});

/// The words before a program that runs in the facility's image: `apptainer exec ... image`, with
/// the folders that a job in `folder`, as compute nodes see it, reads and writes. Throws kConfig
/// for a path that cannot be bound.
std::vector<std::string> image_command(const config::Facility& facility, const RemotePath& folder);

/// The site's own libraries and folders of libraries that the trainer loads, by their paths on
/// compute nodes: the keys library_path, nccl_plugin and cuda_compat.
std::vector<std::string> site_libraries(const config::Facility& facility);

/// The built-in trainer at the facility: the facility's key, or the program beside this xffl.
std::string trainer_program(const config::Facility& facility, const Programs& programs);

struct RenderedScript {
  int round = 1;
  int attempt = 1;
  bool evaluates = false;  // the round after the last, whose job evaluates the last model
  std::string job_name;
  RemotePath folder;          // at the facility; holds job.json when the script runs
  RemotePath model_folder;    // at the facility: the round's input model
  RemotePath adapter_folder;  // at the facility: with LoRA the input adapter, else empty
  std::string script;         // byte for byte the submitted script
};

/// Renders the script of `facility` for its open attempt in `round`, or for its next attempt when
/// no attempt is open. An empty `round` is the round in progress or next; the round after the last
/// is the evaluation. Connects to no facility; reads the project's template file, if any. Throws
/// kNotFound for an unknown facility or a round beyond the last, kConfig for a mistake in the
/// template.
RenderedScript render_script(const config::Experiment& experiment,
                             const history::RunState& run_state, const FacilityName& facility,
                             std::optional<int> round, const Programs& programs);

/// The state of a run that does not exist yet; no run has its folders and nonces.
history::RunState preview_state();

}  // namespace xffl::facility
