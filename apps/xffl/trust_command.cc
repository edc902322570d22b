#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>

#include "commands.h"
#include "terminal.h"
#include "xffl/base/error.h"
#include "xffl/config/load.h"
#include "xffl/facility/services.h"
#include "xffl/remote/ssh.h"

namespace xffl {
namespace {

struct Flags {
  std::filesystem::path project = ".";
  std::string facility;
  std::vector<std::string> fingerprints;  // --yes
};

// A host, and settings whose jump hosts lead to it.
struct Route {
  remote::SshSettings settings;
  remote::SshHost host;
};

// Jump hosts first: a host behind them is reachable only through them.
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

bool accepted(const Flags& flags, const remote::HostKey& key) {
  if (!flags.fingerprints.empty())
    return std::find(flags.fingerprints.begin(), flags.fingerprints.end(), key.fingerprint) !=
           flags.fingerprints.end();
  if (!has_terminal()) return false;
  return ask_on_terminal(
             "Compare it with the fingerprint that the site publishes. Trust it? (type yes to "
             "trust) ",
             true) == "yes";
}

void trust_one(const Flags& flags, const Route& route) {
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
  remote::trust(route.settings, key);
  std::printf("pinned in %s\n", route.settings.known_hosts.c_str());
}

void trust(const Flags& flags) {
  const config::Experiment experiment = config::load_experiment(flags.project);
  const config::Facility& facility = experiment.facility(FacilityName(flags.facility));
  if (facility.access != config::AccessKind::kSsh)
    throw Error(ErrorKind::kConfig,
                "the facility " + flags.facility + " has no SSH access (access: local)");
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

}  // namespace

void add_trust_command(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "trust", "show the host keys of a facility, and pin them after confirmation");
  command->add_option("facility", flags->facility, "its name in xffl.yaml")->required();
  command->add_option("-p,--project", flags->project, "the project's folder (default: .)");
  command->add_option(
      "--yes", flags->fingerprints,
      "for scripts: trust only the key with this fingerprint, \"SHA256:...\"; once for "
      "each host");
  command->callback([flags] { trust(*flags); });
}

}  // namespace xffl
