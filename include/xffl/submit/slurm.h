// Slurm at a facility, driven through a Session: sbatch, squeue, sacct, scancel.
//
// What its answers are worth was measured: docs/slurm.md says how a lost answer, a forgotten job and
// a reused id are told apart from an ended one.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "xffl/base/clock.h"
#include "xffl/remote/session.h"
#include "xffl/submit/scheduler.h"

namespace xffl::submit {

// What a job asks of Slurm, typed; each field becomes at most one option of sbatch, so no value can
// add a directive.
struct SlurmRequest {
  std::string account, partition, qos, constraint, reservation;  // empty: not given
  int nodes = 1;
  int gpus_per_node = 0;
  std::string gpu_option = "gpus-per-node";  // how the site wants it: "gpus-per-node" or "gres"
  int tasks_per_node = 1;                    // ranks on a node: one per GPU
  int cpus_per_task = 0;                     // 0: the site's default
  uint64_t memory_bytes_per_node = 0;        // 0: the site's default
  bool exclusive = false;
  std::chrono::seconds time{3600};            // walltime
  std::chrono::seconds warning{300};          // SIGUSR1 to the job so long before it
  std::string cluster;                        // --clusters; empty: the local one
  std::vector<std::string> extra;             // further "--option" or "--option=value" of sbatch
  bool operator==(const SlurmRequest&) const = default;
};

/// The directives "#SBATCH --..." of a job script, one per line without its end. Throws kConfig for
/// a value that Slurm could not have meant (line breaks, option words in `extra` that xffl sets).
std::vector<std::string> slurm_directives(const SlurmRequest& request);

struct SlurmSettings {
  SlurmRequest request;
  std::chrono::milliseconds settle_time{60'000};     // a job may appear so long after a lost answer
  std::chrono::milliseconds command_timeout{60'000};  // of one Slurm command
};

std::shared_ptr<Scheduler> make_slurm_scheduler(SlurmSettings settings,
                                                std::shared_ptr<remote::Session> session,
                                                Clock& clock);

/// What `sbatch --test-only` says of the script: the estimated start, or why it is refused. Submits
/// nothing.
struct TestOnly {
  bool accepted = false;
  std::string answer;
};
TestOnly test_only(remote::Session& session, const SlurmSettings& settings,
                   const JobRequest& request, std::stop_token stop);

}  // namespace xffl::submit
