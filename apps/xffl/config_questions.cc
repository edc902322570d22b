#include "config_questions.h"

#include <charconv>
#include <cstdio>
#include <system_error>

#include "terminal.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"
#include "xffl/checkpoint/llama_config.h"
#include "xffl/config/load.h"
#include "xffl/facility/services.h"
#include "xffl/remote/ssh.h"

namespace xffl {
namespace {

// The facility with the settings so far; fixed values stand for the keys that are still missing.
config::Facility facility_so_far(const std::vector<config::Setting>& settings,
                                 const std::filesystem::path& project, const std::string& name) {
  const std::string path = "facilities." + name + ".";
  std::vector<config::Setting> some = {{"project", "p"},
                                       {"model", "m"},
                                       {"training.steps_per_round", "1"},
                                       {path + "workdir", "/x"},
                                       {path + "data.train", "/x"}};
  for (const config::Setting& setting : settings)
    for (const char* part : {"access", "scheduler", "ssh", "login_shell"})
      if (setting.path == path + part || setting.path.starts_with(path + part + "."))
        some.push_back(setting);
  return config::parse_experiment(config::format_settings(some), "xffl.yaml", project)
      .facility(FacilityName(name));
}

void require_trust(const remote::SshSettings& settings, const remote::SshHost& host) {
  if (!remote::trusted_keys(settings, host).empty()) return;
  const remote::HostKey key = remote::fetch_host_key(settings, host, login_prompt());
  std::printf("  %s port %d presents %s %s\n", host.name.c_str(), host.port, key.type.c_str(),
              key.fingerprint.c_str());
  std::fflush(stdout);
  if (ask_on_terminal("  Compare it with the fingerprint that the site publishes. Trust it? (type "
                      "yes to trust) ",
                      true) != "yes")
    throw Error(ErrorKind::kAuth, "the key of " + host.name + " was not accepted");
  make_dirs(settings.known_hosts.parent_path());
  remote::trust(settings, key);
}

void print(const submit::SlurmSite& site) {
  for (const submit::SlurmPartition& each : site.partitions) {
    const std::string gpus = each.gpus_per_node == 0
                                 ? ""
                                 : ", " + std::to_string(each.gpus_per_node) +
                                       (each.gpu_type.empty() ? "" : " " + each.gpu_type) + " GPUs";
    std::printf("  partition %s%s: %d node%s%s, %s%s\n", each.name.c_str(),
                each.is_default ? " (the default)" : "", each.nodes, each.nodes == 1 ? "" : "s",
                gpus.c_str(),
                each.longest ? ("at most " + duration_text(*each.longest)).c_str() : "no limit",
                each.is_up ? "" : ", not up");
  }
  for (const submit::SlurmQos& each : site.qos)
    std::printf(
        "  QOS %s%s%s\n", each.name.c_str(),
        each.longest ? (": at most " + duration_text(*each.longest)).c_str() : "",
        each.max_nodes > 0 ? (", nodes of a job: " + std::to_string(each.max_nodes)).c_str() : "");
  for (const std::string& problem : site.problems)
    std::printf("  %s\n", log::printable(problem, 600).c_str());
}

}  // namespace

submit::SlurmSite ask_slurm_of(const std::vector<config::Setting>& settings,
                               const std::filesystem::path& project, const std::string& name) {
  const config::Facility facility = facility_so_far(settings, project, name);
  const remote::SshSettings ssh = facility::ssh_settings(facility, project);
  require_trust(ssh, ssh.hosts.front());
  const auto session = facility::queue_session(facility, remote::log_in(ssh, login_prompt()));
  const submit::SlurmSite site = submit::ask_slurm_site(*session, {});
  print(site);
  return site;
}

int64_t model_state_bytes(const std::filesystem::path& folder, const std::string& precision,
                          bool has_adapter) {
  // For each parameter: its compute copy, and the gradient and two moments in float32; a compute
  // copy of 16 bits has a float32 master beside it (docs/user/training.md, Memory).
  const int64_t width = precision == "fp32" ? 4 : 2;
  const int64_t trained = (width == 4 ? 0 : 4) + 4 + 8;
  try {
    const int64_t count = checkpoint::read_llama_config(folder).num_parameters();
    return count * (has_adapter ? width : width + trained);
  } catch (const Error&) {
    return 0;  // the user brings the model later
  }
}

int64_t whole_number(const std::string& text) {
  int64_t value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  return problem == std::errc() && end == text.data() + text.size() ? value : 0;
}

std::string duration_text(std::chrono::seconds time) {
  const auto count = time.count();
  if (count % 3600 == 0) return std::to_string(count / 3600) + "h";
  if (count % 60 == 0) return std::to_string(count / 60) + "m";
  return std::to_string(count) + "s";
}

}  // namespace xffl
