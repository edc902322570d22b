// The objects through which a run reaches facilities and its caller, made from an experiment.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "xffl/base/clock.h"
#include "xffl/config/experiment.h"
#include "xffl/history/run_history.h"
#include "xffl/remote/ssh.h"
#include "xffl/submit/slurm.h"

namespace xffl::facility {

// The programs that a job's script starts at a facility without SSH.
struct Programs {
  std::filesystem::path xffl;     // starts ranks on this machine
  std::filesystem::path trainer;  // the built-in trainer
};

// A simulation or a test passes other objects.
struct Services {
  Clock& clock;
  // For commands and small files.
  std::function<std::shared_ptr<remote::Session>(const config::Facility&)> connect;
  // For models and updates; may be the same session.
  std::function<std::shared_ptr<remote::Session>(const config::Facility&)> connect_transfer;
  std::function<std::shared_ptr<submit::Scheduler>(const config::Facility&,
                                                   std::shared_ptr<remote::Session>)>
      scheduler;
  Programs programs;
  // The expiry of the facility's credential, if it expires; and an interactive log-in. Both may be
  // absent.
  std::function<std::optional<Clock::UtcTime>(const config::Facility&)> credential_expiry = {};
  std::function<void(const config::Facility&, const remote::Ask&)> log_in = {};
};

// Callbacks for the progress of rounds. Any thread may call them, one call at a time.
struct Observer {
  std::function<void(int round, const FacilityName&, const std::string& metrics_line)> on_training;
  std::function<void(int round, const std::vector<history::Accepted>&, double seconds)> on_round;
};

/// This machine's clock; sessions and schedulers by the facility's kinds, one connection per host;
/// programs beside the running one. Host keys are pinned in <project_folder>/known_hosts. `ask` may
/// be empty; it gets one question at a time when a log-in is interactive.
Services make_services(Clock& clock, const std::filesystem::path& project_folder,
                       remote::Ask ask = {});

/// The facility's queue manager: the row of submit::queue_managers() with the name of its
/// `scheduler`.
const submit::QueueManager& queue_manager(const config::Facility& facility);

remote::SshSettings ssh_settings(const config::Facility& facility,
                                 const std::filesystem::path& project_folder);
/// The settings for files: the same unless the facility has a `transfer` section.
remote::SshSettings transfer_settings(const config::Facility& facility,
                                      const std::filesystem::path& project_folder);

}  // namespace xffl::facility
