// The objects of a run that touch the world, and how an experiment's settings become them.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include "xffl/base/clock.h"
#include "xffl/config/experiment.h"
#include "xffl/remote/ssh.h"
#include "xffl/submit/slurm.h"

namespace xffl::facility {

// What a job's script needs to know about the programs at a facility.
struct Programs {
  std::filesystem::path xffl;     // starts ranks on this machine
  std::filesystem::path trainer;  // the built-in trainer
};

// A simulation or a test passes others.
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
  // When what a log-in to the facility uses ends, if it does; and a log-in that a person helps
  // with. Both may be absent.
  std::function<std::optional<Clock::UtcTime>(const config::Facility&)> credential_expiry = {};
  std::function<void(const config::Facility&, const remote::Ask&)> log_in = {};
};

/// This machine's clock; sessions and schedulers by the facility's kinds, one connection per host;
/// programs beside the running one. Host keys are pinned in <project_folder>/known_hosts. `ask`,
/// which may be empty, is asked one question at a time when a facility wants a person.
Services make_services(Clock& clock, const std::filesystem::path& project_folder,
                       remote::Ask ask = {});

/// The facility's queue manager; SchedulerKind counts the rows of submit::queue_managers().
const submit::QueueManager& queue_manager(const config::Facility& facility);

remote::SshSettings ssh_settings(const config::Facility& facility,
                                 const std::filesystem::path& project_folder);
/// Of the way that files take: the same unless the facility has a `transfer` section.
remote::SshSettings transfer_settings(const config::Facility& facility,
                                      const std::filesystem::path& project_folder);

}  // namespace xffl::facility
