#include <algorithm>
#include <cstdio>

#include "queue_answers.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/submit/slurm.h"

namespace xffl::submit {
namespace {

constexpr int64_t kMebibyte = 1 << 20;

[[noreturn]] void reject(std::string_view key, std::string_view value, std::string_view why) {
  throw Error(ErrorKind::kConfig, "slurm." + std::string(key) + " is '" +
                                      log::printable(value, 200) + "', which " + std::string(why));
}

class Options {
 public:
  void add(const std::string& option, std::string_view value) {
    check_directive_word("slurm." + option, value);
    all.push_back("--" + option + "=" + std::string(value));
  }
  void add(const std::string& option, int64_t value) { add(option, std::to_string(value)); }

  std::vector<std::string> all;
};

// "hours:minutes:seconds".
std::string walltime(std::chrono::seconds time) {
  char text[48];
  const auto count = static_cast<long long>(time.count());
  std::snprintf(text, sizeof text, "%02lld:%02lld:%02lld", count / 3600, count / 60 % 60,
                count % 60);
  return text;
}

void add_resources(const SlurmSettings& settings, Options& options) {
  if (settings.nodes < 1 || settings.tasks_per_node < 1 || settings.time.count() < 1)
    throw Error(ErrorKind::kConfig, "a Slurm job needs nodes, tasks per node and a walltime");
  options.add("nodes", settings.nodes);
  options.add("ntasks-per-node", settings.tasks_per_node);
  if (settings.cpus_per_task > 0) options.add("cpus-per-task", settings.cpus_per_task);
  if (settings.gpus_per_node > 0) {
    const std::string gpus = (settings.gpu_type.empty() ? "" : settings.gpu_type + ":") +
                             std::to_string(settings.gpus_per_node);
    const bool is_gres = settings.gpu_option == GpuOption::kGres;
    options.add(std::string(to_string(settings.gpu_option)), is_gres ? "gpu:" + gpus : gpus);
  }
  if (settings.memory_per_node > 0)
    options.add("mem",
                std::to_string(std::max<int64_t>(1, settings.memory_per_node / kMebibyte)) + "M");
  if (settings.exclusive) options.all.push_back("--exclusive");
  options.add("time", walltime(settings.time));
}

}  // namespace

std::vector<std::string> slurm_options(const SlurmSettings& settings, const std::string& job_name,
                                       const RemotePath& folder, bool may_requeue) {
  Options options;
  options.add("job-name", job_name);
  options.add("chdir", folder.str());
  options.all.push_back("--output=" + std::string(kJobOutput));  // stdout and stderr
  options.all.push_back("--open-mode=append");  // a requeued or duplicate job keeps the output
  options.all.push_back("--input=/dev/null");
  options.all.push_back("--export=NONE");  // independent of the submitter's environment
  options.all.push_back(may_requeue ? "--requeue" : "--no-requeue");
  // A duplicate job, submitted because the first answer was lost, waits until the first job ends.
  options.all.push_back("--dependency=singleton");
  if (settings.warning.count() > 0)
    options.add("signal", "B:USR1@" + std::to_string(settings.warning.count()));
  const std::pair<const char*, const std::string&> optional[] = {
      {"clusters", settings.cluster},      {"account", settings.account},
      {"partition", settings.partition},   {"qos", settings.qos},
      {"constraint", settings.constraint}, {"reservation", settings.reservation}};
  for (const auto& [option, value] : optional)
    if (!value.empty()) options.add(option, value);
  add_resources(settings, options);
  for (const std::string& option : settings.extra) {
    if (const std::string why = validate_sbatch_option(option); !why.empty())
      reject("extra", option, why);
    options.all.push_back(option);
  }
  return std::move(options.all);
}

}  // namespace xffl::submit
