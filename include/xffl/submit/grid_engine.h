// Grid Engine at a facility, driven through a Session: qsub, qstat, qacct, qdel.
//
// docs/operator/grid_engine.md has the conclusions from its answers, as measured on Son of Grid
// Engine 8.1.9.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "xffl/base/clock.h"
#include "xffl/remote/session.h"
#include "xffl/submit/accounting.h"
#include "xffl/submit/scheduler.h"

namespace xffl::submit {

// A facility's Grid Engine: the `gridengine` section of xffl.yaml. Each setting becomes at most one
// option of qsub, and no value can add an option.
struct GridEngineSettings {
  std::string project, queue;        // empty: not set
  std::string parallel_environment;  // distributes the slots over hosts; required for several slots
  int nodes = 1;
  int tasks_per_node = 1;                         // ranks on a node
  int slots_per_node = 0;                         // requested on each node; 0: one per task
  std::vector<std::string> resources;             // "name=value" of -l
  std::chrono::seconds time{3600};                // walltime, h_rt
  std::chrono::seconds warning{300};              // before the walltime: SIGUSR1 to the ranks
  std::chrono::milliseconds settle_time{60'000};  // a job may appear this long after a lost answer
  std::chrono::milliseconds command_timeout{60'000};
  bool operator==(const GridEngineSettings&) const = default;

  int slots() const { return nodes * (slots_per_node > 0 ? slots_per_node : tasks_per_node); }
};

/// Returns every option of the job, such as "-l h_rt=3600", in a fixed order. qsub receives the
/// options and the script contains the same options. Throws kConfig for a value that no directive
/// can hold.
std::vector<std::string> grid_engine_options(const GridEngineSettings& settings,
                                             const std::string& job_name, const RemotePath& folder,
                                             bool may_requeue = true);

/// The scheduler counts only this user's jobs of the request's name: qstat does not show folders.
std::shared_ptr<Scheduler> make_grid_engine_scheduler(GridEngineSettings settings,
                                                      std::shared_ptr<remote::Session> session,
                                                      Clock& clock);

/// The answer of `qsub -w v`.
TestOnly verify_grid_engine(remote::Session& session, const GridEngineSettings& settings,
                            const JobRequest& request, std::stop_token stop);

/// Every start of the jobs in the accounting, by job and time. Throws kRemote when qacct does not
/// answer.
std::vector<AccountedStart> grid_engine_starts(remote::Session& session,
                                               const GridEngineSettings& settings,
                                               std::span<const SubmittedJob> jobs,
                                               std::stop_token stop);

struct QueueManager;  // queue_manager.h
const QueueManager& grid_engine_queue_manager();

}  // namespace xffl::submit
