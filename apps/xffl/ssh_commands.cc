#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>

#include "command_tree.h"
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

const config::Facility& ssh_facility(const config::Experiment& experiment,
                                     const std::string& name) {
  const config::Facility& facility = experiment.facility(FacilityName(name));
  if (facility.access != config::AccessKind::kSsh)
    throw Error(ErrorKind::kConfig, "the facility " + name + " has no SSH access (access: local)");
  return facility;
}

struct TrustFlags {
  std::filesystem::path project = ".";
  std::string facility;
  std::vector<std::string> fingerprints;  // --yes
  bool add = false;
};

// A host, and settings whose jump hosts lead to it.
struct Route {
  remote::SshSettings settings;
  remote::SshHost host;
};

// Jump hosts come first: the other hosts are reachable only through the jump hosts.
std::vector<Route> routes_of(const remote::SshSettings& settings) {
  std::vector<Route> routes;
  remote::SshSettings so_far = settings;
  so_far.jump.clear();
  for (const remote::SshHost& jump : settings.jump) {
    routes.push_back({so_far, jump});
    so_far.jump.push_back(jump);
  }
  for (const remote::SshHost& host : settings.hosts) routes.push_back({so_far, host});
  return routes;
}

void show(const std::vector<remote::HostKey>& pinned, const remote::HostKey& key) {
  const std::string where = key.host.name + " port " + std::to_string(key.host.port);
  if (pinned.empty()) {
    std::printf("%s is not trusted yet.\n", where.c_str());
  } else {
    std::printf("THE HOST KEY HAS CHANGED: %s. This may be a man-in-the-middle attack.\n",
                where.c_str());
    for (const remote::HostKey& old : pinned)
      std::printf("  trusted so far  %s %s\n", old.type.c_str(), old.fingerprint.c_str());
  }
  std::printf("  presented now   %s %s\n", key.type.c_str(), key.fingerprint.c_str());
  std::fflush(stdout);
}

bool accepted(const TrustFlags& flags, const remote::HostKey& key) {
  if (!flags.fingerprints.empty())
    return std::find(flags.fingerprints.begin(), flags.fingerprints.end(), key.fingerprint) !=
           flags.fingerprints.end();
  if (!has_terminal()) return false;
  return ask_on_terminal(
             "Compare it with the fingerprint that the site publishes. Trust it? (type yes to "
             "trust) ",
             true) == "yes";
}

void trust_one(const TrustFlags& flags, const Route& route) {
  const auto pinned = remote::trusted_keys(route.settings, route.host);
  const remote::HostKey key = remote::fetch_host_key(route.settings, route.host, login_prompt());
  const bool known = std::any_of(pinned.begin(), pinned.end(),
                                 [&](const remote::HostKey& old) { return old.line == key.line; });
  if (known) {
    std::printf("%s port %d is trusted: %s %s\n", key.host.name.c_str(), key.host.port,
                key.type.c_str(), key.fingerprint.c_str());
    return;
  }
  show(pinned, key);
  if (!accepted(flags, key))
    throw Error(ErrorKind::kAuth,
                "the key of " + key.host.name + " was not accepted" +
                    (!flags.fingerprints.empty() ? ": --yes names another fingerprint"
                     : has_terminal()            ? ": the answer was not 'yes'"
                                      : "; without a terminal, give --yes with its fingerprint"));
  (flags.add ? remote::trust_also : remote::trust)(route.settings, key);
  std::printf("pinned in %s\n", route.settings.known_hosts.c_str());
}

void trust(const TrustFlags& flags) {
  const config::Experiment experiment = config::load_experiment(flags.project);
  const config::Facility& facility = ssh_facility(experiment, flags.facility);
  std::vector<Route> routes =
      routes_of(facility::ssh_settings(facility, experiment.project_folder));
  for (Route& route : routes_of(facility::transfer_settings(facility, experiment.project_folder)))
    if (std::none_of(routes.begin(), routes.end(),
                     [&](const Route& known) { return known.host == route.host; }))
      routes.push_back(std::move(route));
  std::optional<Error> problem;
  for (const Route& route : routes) try {
      trust_one(flags, route);
    } catch (const Error& error) {  // continue with the other hosts
      if (problem) std::fprintf(stderr, "xffl: %s\n", problem->what());
      problem = error.kind() == ErrorKind::kAuth || !problem ? error
                                                             : Error(problem->kind(), error.what());
    }
  if (problem) throw *problem;
}

std::string ask(const std::string& prompt, bool echo) {
  return ask_on_terminal(log::printable(prompt, 1000), echo);
}

void log_in_to(const remote::SshSettings& settings) {
  const auto session = remote::log_in(settings, ask);
  std::string account = settings.user;
  if (settings.shell) {
    const auto result = session->run({"uname", "-n"}, "", std::chrono::seconds(60), {});
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
  const config::Experiment experiment = config::load_experiment(options.project);
  const config::Facility& facility = ssh_facility(experiment, name);
  const auto settings = facility::ssh_settings(facility, experiment.project_folder);
  if (log_in_for_run(options, facility.name)) return;
  log_in_to(settings);
  if (!facility.transfer.hosts.empty())
    log_in_to(facility::transfer_settings(facility, experiment.project_folder));
  if (const auto end = remote::credential_expiry(settings))
    std::printf("the certificate is valid until %s\n", format_utc(*end).c_str());
}

void add_trust(CLI::App& app) {
  auto flags = std::make_shared<TrustFlags>();
  CLI::App* command = app.add_subcommand(
      "trust", "show the host keys of a facility, and pin them after confirmation");
  command->add_option("facility", flags->facility, "the facility's name in xffl.yaml")
      ->type_name(kFacilityType)
      ->required();
  command->add_option("-p,--project", flags->project, "the project's folder (default: .)")
      ->type_name(kFolderType);
  command->add_option(
      "--yes", flags->fingerprints,
      "for scripts: trust only the key with this fingerprint, \"SHA256:...\"; once for "
      "each host");
  command->add_flag("--add", flags->add,
                    "keep the keys that are pinned: for one name of several nodes with keys of "
                    "their own; repeat until each node is trusted");
  command->callback([flags] { trust(*flags); });
}

void add_login(CLI::App& app) {
  struct Flags {
    ProjectOptions options;
    std::string facility;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "login",
      "log in to a facility; asks its questions (password, one-time code) on the terminal");
  command->add_option("facility", flags->facility, "the facility's name in xffl.yaml")
      ->type_name(kFacilityType)
      ->required();
  add_project_options(command, flags->options);
  command->callback([flags] { login(flags->options, flags->facility); });
}

}  // namespace

void add_ssh_commands(CLI::App& app) {
  add_trust(app);
  add_login(app);
}

}  // namespace xffl
