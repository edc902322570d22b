#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "commands.h"
#include "project.h"
#include "terminal.h"
#include "xffl/base/clock.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/config/load.h"
#include "xffl/facility/services.h"
#include "xffl/remote/ssh.h"
#include "xffl/run/log_in.h"

namespace xffl {
namespace {

std::string ask(const std::string& prompt, bool echo) {
  return ask_on_terminal(log::printable(prompt, 1000), echo);
}

void log_in_to(const remote::SshSettings& settings) {
  const auto session = remote::log_in(settings, ask);
  std::string account = settings.user;
  if (settings.shell) {
    const auto result = session->run({"hostname"}, "", std::chrono::seconds(60), {});
    account += " at " + log::printable(result.out.substr(0, result.out.find('\n')), 100);
  }
  std::printf("logged in: %s\n", account.c_str());
}

// A coordinator that waits for this log-in makes the connection, keeps it and continues.
bool log_in_for_run(const ProjectOptions& options, const FacilityName& facility) {
  const auto newest = history::latest_run(options.runs());
  if (options.run.empty() && !newest) return false;
  const history::RunFolder folder(options.runs(),
                                  options.run.empty() ? *newest : RunName(options.run));
  if (!run::log_in_through_coordinator(folder, facility, ask)) return false;
  std::printf("logged in: the coordinator of run %s continues\n", folder.run().str().c_str());
  return true;
}

void login(const ProjectOptions& options, const std::string& name) {
  const std::filesystem::path& project = options.project;
  const config::Experiment experiment = config::load_experiment(project);
  const config::Facility& facility = experiment.facility(FacilityName(name));
  if (facility.access != config::AccessKind::kSsh)
    throw Error(ErrorKind::kConfig, "the facility " + name + " has no SSH access (access: local)");
  const auto settings = facility::ssh_settings(facility, experiment.project_folder);
  if (log_in_for_run(options, facility.name)) return;
  log_in_to(settings);
  if (!facility.transfer.hosts.empty())
    log_in_to(facility::transfer_settings(facility, experiment.project_folder));
  if (const auto end = remote::credential_expiry(settings))
    std::printf("the certificate is valid until %s\n", format_utc(*end).c_str());
}

}  // namespace

void add_login_command(CLI::App& app) {
  struct Flags {
    ProjectOptions options;
    std::string facility;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "login",
      "log in to a facility; asks its questions (password, one-time code) on the terminal");
  command->add_option("facility", flags->facility, "its name in xffl.yaml")->required();
  add_project_options(command, flags->options);
  command->callback([flags] { login(flags->options, flags->facility); });
}

}  // namespace xffl
