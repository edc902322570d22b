// Flux at a facility, driven through a Session: flux batch, flux jobs, flux cancel.
//
// Written from the documented formats and tested on a program that answers in them; not run on a
// real site. docs/operator/pbs_and_flux.md has the conclusions from the answers.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "xffl/base/clock.h"
#include "xffl/remote/session.h"
#include "xffl/submit/scheduler.h"

namespace xffl::submit {

// A facility's Flux: the `flux` section of xffl.yaml. A job has whole nodes. No value can add an
// option.
struct FluxSettings {
  std::string queue, bank;               // empty: not set
  std::vector<std::string> constraints;  // of --requires, such as "mi300a"
  int nodes = 1;
  int tasks_per_node = 1;                         // ranks on a node
  std::chrono::seconds time{3600};                // walltime
  std::chrono::seconds warning{300};              // before the walltime: SIGUSR1 to the ranks
  std::chrono::milliseconds settle_time{60'000};  // a job may appear this long after a lost answer
  std::chrono::milliseconds command_timeout{60'000};
  bool operator==(const FluxSettings&) const = default;
};

/// Returns every option of the job, such as "--time-limit=3600s", in a fixed order. flux batch
/// receives the options and the script contains the same options. Throws kConfig for a value that
/// no directive can hold.
std::vector<std::string> flux_options(const FluxSettings& settings, const std::string& job_name,
                                      const RemotePath& folder);

/// The scheduler counts only this user's jobs of the request's name.
std::shared_ptr<Scheduler> make_flux_scheduler(FluxSettings settings,
                                               std::shared_ptr<remote::Session> session,
                                               Clock& clock);

struct QueueManager;  // queue_manager.h
const QueueManager& flux_queue_manager();

}  // namespace xffl::submit
