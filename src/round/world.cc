#include <filesystem>
#include <map>
#include <mutex>

#include "xffl/round/slurm_settings.h"
#include "xffl/remote/ssh.h"
#include "xffl/round/federation.h"

namespace xffl::round {
namespace {

std::vector<remote::SshHost> hosts_of(const std::vector<config::Host>& hosts) {
  std::vector<remote::SshHost> result;
  for (const config::Host& host : hosts) result.push_back({host.name, host.port});
  return result;
}

// Sessions are made once and shared by rounds: one connection per host is kept.
class Sessions {
 public:
  explicit Sessions(std::filesystem::path project_folder)
      : project_folder_(std::move(project_folder)) {}

  std::shared_ptr<remote::Session> commands(const config::Facility& facility) {
    const std::lock_guard lock(mutex_);
    auto& session = commands_[facility.name];
    if (!session) session = make(facility, false);
    return session;
  }
  std::shared_ptr<remote::Session> files(const config::Facility& facility) {
    if (facility.transfer.hosts.empty()) return commands(facility);
    const std::lock_guard lock(mutex_);
    auto& session = files_[facility.name];
    if (!session) session = make(facility, true);
    return session;
  }

 private:
  std::shared_ptr<remote::Session> make(const config::Facility& facility, bool files) const {
    if (facility.access == config::AccessKind::kLocal) return remote::make_local_session();
    return remote::make_ssh_session(files ? transfer_settings(facility, project_folder_)
                                          : ssh_settings(facility, project_folder_));
  }

  std::filesystem::path project_folder_;
  std::mutex mutex_;
  std::map<FacilityName, std::shared_ptr<remote::Session>> commands_, files_;
};

std::shared_ptr<submit::Scheduler> make_scheduler(const config::Facility& facility,
                                                  std::shared_ptr<remote::Session> session,
                                                  Clock& clock) {
  if (facility.scheduler == config::SchedulerKind::kProcess)
    return submit::make_process_scheduler();
  return submit::make_slurm_scheduler(slurm_settings(facility.slurm), std::move(session), clock);
}

}  // namespace

remote::SshSettings ssh_settings(const config::Facility& facility,
                                 const std::filesystem::path& project_folder) {
  remote::SshSettings settings;
  settings.facility = facility.name.str();
  settings.hosts = hosts_of(facility.ssh.hosts);
  settings.user = facility.ssh.user;
  settings.jump = hosts_of(facility.ssh.jump);
  settings.keys.assign(facility.ssh.keys.begin(), facility.ssh.keys.end());
  settings.agent = facility.ssh.agent;
  settings.known_hosts = project_folder / "known_hosts";
  settings.streams = facility.ssh.streams;
  return settings;
}

remote::SshSettings transfer_settings(const config::Facility& facility,
                                      const std::filesystem::path& project_folder) {
  remote::SshSettings settings = ssh_settings(facility, project_folder);
  if (facility.transfer.hosts.empty()) return settings;
  settings.hosts = hosts_of(facility.transfer.hosts);
  if (!facility.transfer.user.empty()) settings.user = facility.transfer.user;
  settings.shell = facility.transfer.shell;
  return settings;
}

World make_world(Clock& clock, const std::filesystem::path& project_folder) {
  const auto sessions = std::make_shared<Sessions>(project_folder);
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe");
  return World{
      .clock = clock,
      .connect = [sessions](const config::Facility& f) { return sessions->commands(f); },
      .connect_transfer = [sessions](const config::Facility& f) { return sessions->files(f); },
      .scheduler =
          [&clock](const config::Facility& f, std::shared_ptr<remote::Session> session) {
            return make_scheduler(f, std::move(session), clock);
          },
      .programs = {self, self.parent_path() / "xffl-train"}};
}

}  // namespace xffl::round
