#include "xffl/facility/services.h"

#include <filesystem>
#include <map>
#include <mutex>
#include <utility>

#include "xffl/remote/login_shell.h"
#include "xffl/remote/ssh.h"

namespace xffl::facility {
namespace {

// The sessions and schedulers that all rounds share. Each host gets one connection. A later round
// reaps the processes that outlive their round, and each site gets one query for its Slurm's
// features.
class Connections {
 public:
  Connections(Clock& clock, std::filesystem::path project_folder, remote::Ask ask,
              std::chrono::seconds connection_wait)
      : clock_(clock),
        project_folder_(std::move(project_folder)),
        ask_(std::move(ask)),
        limits_(remote::make_connection_limits(connection_wait)) {}

  std::shared_ptr<remote::Session> commands(const config::Facility& facility) {
    const std::lock_guard lock(mutex_);
    return open(commands_[facility.name], facility, ssh_settings(facility, project_folder_));
  }
  std::shared_ptr<remote::Session> files(const config::Facility& facility) {
    if (facility.transfer.hosts.empty()) return commands(facility);
    const std::lock_guard lock(mutex_);
    return open(files_[facility.name], facility, transfer_settings(facility, project_folder_));
  }
  std::shared_ptr<submit::Scheduler> scheduler(const config::Facility& facility,
                                               const std::shared_ptr<remote::Session>& session) {
    const std::lock_guard lock(mutex_);
    Used& used = schedulers_[facility.name];
    if (!used.scheduler || used.session != session || used.settings != facility.scheduler)
      used = {session, facility.scheduler,
              facility.scheduler.manager().make(facility.scheduler,
                                                queue_session(facility, session), clock_)};
    return used.scheduler;
  }

  void log_in(const config::Facility& facility, const remote::Ask& ask) {
    remote::log_in(*commands(facility), ask);
    if (!facility.transfer.hosts.empty()) remote::log_in(*files(facility), ask);
  }

 private:
  struct Open {
    std::shared_ptr<remote::Session> session;
    config::AccessKind access = config::AccessKind::kLocal;
    remote::SshSettings settings;
  };
  // A run that reads xffl.yaml again may have other hosts or keys.
  std::shared_ptr<remote::Session> open(Open& known, const config::Facility& facility,
                                        const remote::SshSettings& settings) const {
    if (!known.session || known.access != facility.access || !(known.settings == settings))
      known = {make(facility, settings), facility.access, settings};
    return known.session;
  }

  std::shared_ptr<remote::Session> make(const config::Facility& facility,
                                        const remote::SshSettings& settings) const {
    if (facility.access == config::AccessKind::kLocal) return remote::make_local_session();
    return remote::make_ssh_session(settings, limits_,
                                    ask_ ? ask_for(facility.name) : remote::Ask());
  }
  // Facilities ask from their own threads.
  remote::Ask ask_for(const FacilityName& facility) const {
    return [this, name = facility.str()](const std::string& prompt, bool echo) {
      const std::lock_guard lock(asking_);
      return ask_(name + ": " + prompt, echo);
    };
  }

  Clock& clock_;
  const std::filesystem::path project_folder_;
  const remote::Ask ask_;
  const std::shared_ptr<remote::ConnectionLimits> limits_;
  std::mutex mutex_;
  mutable std::mutex asking_;
  std::map<FacilityName, Open> commands_, files_;
  // A job beside the run's jobs (SideJob) has other settings than they.
  struct Used {
    std::shared_ptr<remote::Session> session;
    submit::QueueSettings settings;
    std::shared_ptr<submit::Scheduler> scheduler;
  };
  std::map<FacilityName, Used> schedulers_;
};

}  // namespace

std::shared_ptr<remote::Session> queue_session(const config::Facility& facility,
                                               std::shared_ptr<remote::Session> session) {
  if (!facility.login_shell) return session;
  return remote::make_login_shell_session(std::move(session));
}

remote::SshSettings ssh_settings(const config::Facility& facility,
                                 const std::filesystem::path& project_folder) {
  remote::SshSettings settings = facility.ssh;
  settings.facility = facility.name.str();
  settings.known_hosts = project_folder / "known_hosts";
  return settings;
}

remote::SshSettings transfer_settings(const config::Facility& facility,
                                      const std::filesystem::path& project_folder) {
  remote::SshSettings settings = ssh_settings(facility, project_folder);
  if (facility.transfer.hosts.empty()) return settings;
  settings.hosts = facility.transfer.hosts;
  if (!facility.transfer.user.empty()) settings.user = facility.transfer.user;
  settings.shell = facility.transfer.shell;
  return settings;
}

Services make_services(Clock& clock, const std::filesystem::path& project_folder, remote::Ask ask,
                       std::chrono::seconds connection_wait) {
  const auto all =
      std::make_shared<Connections>(clock, project_folder, std::move(ask), connection_wait);
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe");
  return Services{.clock = clock,
                  .connect = [all](const config::Facility& f) { return all->commands(f); },
                  .connect_transfer = [all](const config::Facility& f) { return all->files(f); },
                  .scheduler = [all](const config::Facility& f,
                                     const auto& session) { return all->scheduler(f, session); },
                  .programs = {self, self.parent_path() / "xffl-train"},
                  .credential_expiry =
                      [project_folder](const config::Facility& f) -> std::optional<Clock::UtcTime> {
                    if (f.access != config::AccessKind::kSsh) return std::nullopt;
                    return remote::credential_expiry(ssh_settings(f, project_folder));
                  },
                  .log_in = [all](const config::Facility& f,
                                  const remote::Ask& answers) { all->log_in(f, answers); }};
}

}  // namespace xffl::facility
