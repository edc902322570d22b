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

// A host and the way to it.
struct Way {
  remote::SshSettings settings;
  remote::SshHost host;
};

// Jump hosts first: what is behind one is seen only through it.
std::vector<Way> ways_of(const remote::SshSettings& settings) {
  std::vector<Way> ways;
  remote::SshSettings so_far = settings;
  so_far.jump.clear();
  for (const remote::SshHost& jump : settings.jump) {
    ways.push_back({so_far, jump});
    so_far.jump.push_back(jump);
  }
  for (const remote::SshHost& host : settings.hosts) ways.push_back({so_far, host});
  return ways;
}

void show(const std::vector<remote::HostKey>& pinned, const remote::HostKey& key) {
  const std::string where = key.host.name + " port " + std::to_string(key.host.port);
  if (pinned.empty()) {
    std::printf("%s is not trusted yet.\n", where.c_str());
  } else {
    std::printf("THE HOST KEY HAS CHANGED: %s. Somebody may be in between.\n", where.c_str());
    for (const remote::HostKey& old : pinned)
      std::printf("  trusted so far  %s %s\n", old.type.c_str(), old.fingerprint.c_str());
  }
  std::printf("  it shows now    %s %s\n", key.type.c_str(), key.fingerprint.c_str());
  std::fflush(stdout);
}

bool accepted(const Flags& flags, const remote::HostKey& key) {
  if (!flags.fingerprints.empty())
    return std::find(flags.fingerprints.begin(), flags.fingerprints.end(), key.fingerprint) !=
           flags.fingerprints.end();
  if (!has_terminal()) return false;
  return ask_on_terminal("Compare it with what the site publishes. Trust it? (type yes to trust) ",
                         true) == "yes";
}

void trust_one(const Flags& flags, const Way& way) {
  const auto pinned = remote::trusted_keys(way.settings, way.host);
  const remote::HostKey key = remote::fetch_host_key(way.settings, way.host, person_at_terminal());
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
  remote::trust(way.settings, key);
  std::printf("trusted from now on, in %s\n", way.settings.known_hosts.c_str());
}

void trust(const Flags& flags) {
  const config::Experiment experiment = config::load_experiment(flags.project);
  const config::Facility& facility = experiment.facility(FacilityName(flags.facility));
  if (facility.access != config::AccessKind::kSsh)
    throw Error(ErrorKind::kConfig, "the facility " + flags.facility + " is not behind SSH");
  std::vector<Way> ways = ways_of(facility::ssh_settings(facility, experiment.project_folder));
  for (Way& way : ways_of(facility::transfer_settings(facility, experiment.project_folder)))
    if (std::none_of(ways.begin(), ways.end(), [&](const Way& w) { return w.host == way.host; }))
      ways.push_back(std::move(way));
  std::optional<Error> problem;
  for (const Way& way : ways) try {
      trust_one(flags, way);
    } catch (const Error& error) {  // the others may still be trusted
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
      "trust", "show the host keys of a facility, and pin them when a person agrees");
  command->add_option("facility", flags->facility, "its name in xffl.yaml")->required();
  command->add_option("-p,--project", flags->project, "the project's folder (default: .)");
  command->add_option("--yes", flags->fingerprints,
                      "for scripts: trust the key with this fingerprint, \"SHA256:...\", and no "
                      "other; once for each host");
  command->callback([flags] { trust(*flags); });
}

}  // namespace xffl
