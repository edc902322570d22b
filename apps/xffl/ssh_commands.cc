#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>

#include "command_tree.h"
#include "commands.h"
#include "project.h"
#include "terminal.h"
#include "xffl/base/clock.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/config/load.h"
#include "xffl/facility/services.h"
#include "xffl/history/store.h"
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

// The run whose coordinator may wait for a log-in.
std::optional<history::RunFolder> run_of(const ProjectOptions& options) {
  const auto newest = history::latest_run(options.runs());
  if (options.run.empty() && !newest) return std::nullopt;
  return history::RunFolder(options.runs(), options.run.empty() ? *newest : RunName(options.run));
}

// The settings that a log-in depends on. A symbolic link gives the project's keys two paths.
remote::SshSettings of_log_in(remote::SshSettings settings) {
  settings.renew.clear();
  settings.streams = 0;
  for (std::filesystem::path& key : settings.keys) key = std::filesystem::weakly_canonical(key);
  return settings;
}

// Whether the run's coordinator logs in to the facility with the settings of xffl.yaml. True for a
// run without a readable configuration: its coordinator decides.
bool run_has_settings(const ProjectOptions& options, const history::RunFolder& folder,
                      const config::Facility& facility) try {
  const config::Experiment experiment = experiment_of(options, folder);
  const auto same = [&](auto settings_of, const config::Facility& other) {
    return of_log_in(settings_of(other, experiment.project_folder)) ==
           of_log_in(settings_of(facility, experiment.project_folder));
  };
  return std::any_of(experiment.facilities.begin(), experiment.facilities.end(),
                     [&](const config::Facility& other) {
                       return other.name == facility.name && same(facility::ssh_settings, other) &&
                              same(facility::transfer_settings, other);
                     });
} catch (const std::exception&) {
  return true;
}

// A coordinator on another machine, or without a socket, does not learn of a log-in from here.
void require_no_coordinator(const history::RunFolder& folder, const std::string& facility) {
  const std::string holder = history::lock_holder(folder.journal());
  if (holder.empty()) return;
  const bool is_here = holder.find(" on " + history::this_host() + " since ") != std::string::npos;
  throw Error(ErrorKind::kFailed,
              "this log-in worked, but does not reach the coordinator (" + holder + "): " +
                  (is_here ? "if a second try does not either, stop the coordinator and start "
                             "`xffl run` on a terminal, where it asks its questions itself"
                           : "run `xffl login " + facility + "` on that machine"));
}

void login(const ProjectOptions& options, const std::string& name) {
  const config::Experiment experiment = config::load_experiment(options.project);
  const config::Facility& facility = ssh_facility(experiment, name);
  const auto settings = facility::ssh_settings(facility, experiment.project_folder);
  const auto folder = run_of(options);
  const bool same_settings = folder && run_has_settings(options, *folder, facility);
  // A coordinator that waits for this log-in makes the connection, keeps it and continues.
  const bool reached =
      same_settings && run::log_in_through_coordinator(*folder, facility.name, ask);
  if (reached) {
    std::printf("logged in: the coordinator of run %s continues\n", folder->run().str().c_str());
  } else {
    if (folder && !same_settings && may_have_coordinator(*folder))
      std::printf(
          "the coordinator of run %s does not have these settings of %s until it is started again "
          "or a new facility joins\n",
          folder->run().str().c_str(), name.c_str());
    log_in_to(settings);
    if (!facility.transfer.hosts.empty())
      log_in_to(facility::transfer_settings(facility, experiment.project_folder));
  }
  if (const auto end = remote::credential_expiry(settings))
    std::printf("the certificate is valid until %s\n", format_utc(*end).c_str());
  if (same_settings && !reached) require_no_coordinator(*folder, name);
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
