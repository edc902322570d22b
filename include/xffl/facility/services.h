// The objects through which a run reaches facilities and its caller, made from an experiment.
#pragma once

#include <chrono>
#include <cstdint>
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
#include "xffl/submit/scheduler.h"

namespace xffl::facility {

// The programs that a job's script starts at a facility without SSH.
struct Programs {
  std::filesystem::path xffl;     // starts ranks on this machine
  std::filesystem::path trainer;  // the built-in trainer
};

// The implementations of the interfaces with side effects that a run uses. A simulation or a test
// passes its own implementations.
struct Services {
  Clock& clock;
  // Opens a session for commands and small files.
  std::function<std::shared_ptr<remote::Session>(const config::Facility&)> connect;
  // Opens a session for models and updates; may return the same session.
  std::function<std::shared_ptr<remote::Session>(const config::Facility&)> connect_transfer;
  std::function<std::shared_ptr<submit::Scheduler>(const config::Facility&,
                                                   std::shared_ptr<remote::Session>)>
      scheduler;
  Programs programs;
  // The first function returns the expiry of the facility's credential, empty if the credential
  // does not expire. The second function logs in interactively. Both functions may be empty.
  std::function<std::optional<Clock::UtcTime>(const config::Facility&)> credential_expiry = {};
  std::function<void(const config::Facility&, const remote::Ask&)> log_in = {};
};

// Callbacks for the progress of rounds. Any thread may call them, one call at a time.
struct Observer {
  // This process holds the run from here on, as the writer of this epoch; called once.
  std::function<void(int64_t epoch)> on_begin{};
  std::function<void(int round, const FacilityName&, const std::string& metrics_line)> on_training;
  std::function<void(int round, const std::vector<history::Accepted>&, double seconds)> on_round;
};

/// For commands that connect to many facilities in one go: the limits of a host allow the next
/// connection within a minute.
inline constexpr std::chrono::seconds kPatientConnection{61};

/// Makes sessions and schedulers of the facilities' kinds, with one connection per host; the
/// programs are the files beside the running program. Sessions pin host keys in
/// <project_folder>/known_hosts. `ask` may be empty; an interactive login asks one question at a
/// time. A session waits up to `connection_wait` when the limits of new connections to its host ask
/// for a pause: a run repeats the action later, and a command that asks many facilities waits.
Services make_services(Clock& clock, const std::filesystem::path& project_folder,
                       remote::Ask ask = {},
                       std::chrono::seconds connection_wait = std::chrono::seconds(3));

/// The session for the queue manager's commands: `session`, or its commands in a login shell.
std::shared_ptr<remote::Session> queue_session(const config::Facility& facility,
                                               std::shared_ptr<remote::Session> session);

remote::SshSettings ssh_settings(const config::Facility& facility,
                                 const std::filesystem::path& project_folder);
/// The SSH settings for files: ssh_settings(), unless the facility has a `transfer` section.
remote::SshSettings transfer_settings(const config::Facility& facility,
                                      const std::filesystem::path& project_folder);

}  // namespace xffl::facility
