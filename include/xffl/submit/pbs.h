// PBS Professional and OpenPBS at a facility, driven through a Session: qsub, qselect, qstat, qdel.
//
// Written from the documented formats and tested on programs that answer in them; not run on a real
// site. docs/operator/pbs_and_flux.md has the conclusions from the answers.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "xffl/base/clock.h"
#include "xffl/remote/session.h"
#include "xffl/submit/scheduler.h"

namespace xffl::submit {

// A facility's PBS: the `pbs` section of xffl.yaml. No value can add an option.
struct PbsSettings {
  std::string account, project, queue;  // empty: not set
  int nodes = 1;
  int tasks_per_node = 1;                         // ranks on a node
  int cpus_per_node = 0;                          // ncpus of a chunk; 0: one per task
  int gpus_per_node = 0;                          // ngpus of a chunk
  std::vector<std::string> chunk;                 // further "name=value" of a node's chunk
  std::vector<std::string> resources;             // "name=value" of -l, for the whole job
  std::chrono::seconds time{3600};                // walltime
  std::chrono::seconds warning{300};              // before the walltime: SIGUSR1 to the ranks
  std::chrono::milliseconds settle_time{60'000};  // a job may appear this long after a lost answer
  std::chrono::milliseconds command_timeout{60'000};
  bool operator==(const PbsSettings&) const = default;

  int cpus() const { return cpus_per_node > 0 ? cpus_per_node : tasks_per_node; }
};

/// Returns every option of the job, such as "-l walltime=3600", in a fixed order. qsub receives the
/// options and the script contains the same options. Throws kConfig for a value that no directive
/// can hold.
std::vector<std::string> pbs_options(const PbsSettings& settings, const std::string& job_name,
                                     const RemotePath& folder, bool may_requeue = true);

/// The scheduler counts only this user's jobs of the request's name.
std::shared_ptr<Scheduler> make_pbs_scheduler(PbsSettings settings,
                                              std::shared_ptr<remote::Session> session,
                                              Clock& clock);

struct QueueManager;  // queue_manager.h
const QueueManager& pbs_queue_manager();

}  // namespace xffl::submit
