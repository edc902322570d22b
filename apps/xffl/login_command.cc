#include "login_command.h"

#include <cstdio>
#include <memory>

#include "terminal.h"
#include "xffl/base/clock.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/config/load.h"
#include "xffl/remote/ssh.h"
#include "xffl/round/world.h"

namespace xffl {
namespace {

void log_in_to(const remote::SshSettings& settings) {
  const remote::Ask ask = [](const std::string& prompt, bool echo) {
    return ask_on_terminal(log::printable(prompt, 1000), echo);
  };
  const auto session = remote::log_in(settings, ask);
  std::string who = settings.user;
  if (settings.shell) {
    const auto result = session->run({"hostname"}, "", std::chrono::seconds(60), {});
    who += " at " + log::printable(result.out.substr(0, result.out.find('\n')), 100);
  }
  std::printf("logged in: %s\n", who.c_str());
}

void login(const std::filesystem::path& project, const std::string& name) {
  const config::Experiment experiment = config::load_experiment(project);
  const config::Facility& facility = experiment.facility(FacilityName(name));
  if (facility.access != config::AccessKind::kSsh)
    throw Error(ErrorKind::kConfig, "the facility " + name + " is not behind SSH");
  const auto settings = round::ssh_settings(facility, experiment.project_folder);
  log_in_to(settings);
  if (!facility.transfer.hosts.empty())
    log_in_to(round::transfer_settings(facility, experiment.project_folder));
  if (const auto end = remote::credential_expiry(settings))
    std::printf("the certificate is valid until %s\n", format_utc(*end).c_str());
}

}  // namespace

void add_login_command(CLI::App& app) {
  struct Flags {
    std::filesystem::path project = ".";
    std::string facility;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "login", "try the log-in to a facility, answering what it asks on the terminal");
  command->add_option("facility", flags->facility, "its name in xffl.yaml")->required();
  command->add_option("-p,--project", flags->project, "the project's folder (default: .)");
  command->callback([flags] { login(flags->project, flags->facility); });
}

}  // namespace xffl
