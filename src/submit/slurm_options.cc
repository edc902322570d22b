#include <algorithm>
#include <cstdio>

#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/job/sbatch_option.h"
#include "xffl/submit/slurm.h"

namespace xffl::submit {
namespace {

constexpr uint64_t kMebibyte = 1 << 20;

[[noreturn]] void reject(std::string_view key, std::string_view value, std::string_view why) {
  throw Error(ErrorKind::kConfig, "slurm." + std::string(key) + " is '" +
                                      log::printable(value, 200) + "', which " + std::string(why));
}

class Options {
 public:
  void add(const std::string& option, std::string_view value) {
    constexpr std::string_view kCharacters =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.,:/@%+&|*()[]=-";
    if (value.empty() || value.front() == '-' ||
        value.find_first_not_of(kCharacters) != std::string_view::npos)
      reject(option, value, "cannot be one word of an #SBATCH directive");
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

void add_resources(const SlurmRequest& request, Options& options) {
  if (request.nodes < 1 || request.tasks_per_node < 1 || request.time.count() < 1)
    throw Error(ErrorKind::kConfig, "a Slurm job needs nodes, tasks per node and a walltime");
  options.add("nodes", request.nodes);
  options.add("ntasks-per-node", request.tasks_per_node);
  if (request.cpus_per_task > 0) options.add("cpus-per-task", request.cpus_per_task);
  if (request.gpus_per_node > 0) {
    const std::string gpus = (request.gpu_type.empty() ? "" : request.gpu_type + ":") +
                             std::to_string(request.gpus_per_node);
    if (request.gpu_option == "gres")
      options.add("gres", "gpu:" + gpus);
    else if (request.gpu_option == "gpus-per-node")
      options.add("gpus-per-node", gpus);
    else
      reject("gpu_option", request.gpu_option, "is neither gres nor gpus-per-node");
  }
  if (request.memory_bytes_per_node > 0)
    options.add(
        "mem",
        std::to_string(std::max<uint64_t>(1, request.memory_bytes_per_node / kMebibyte)) + "M");
  if (request.exclusive) options.all.push_back("--exclusive");
  options.add("time", walltime(request.time));
}

}  // namespace

std::vector<std::string> slurm_options(const SlurmRequest& request, const std::string& job_name,
                                       const RemotePath& folder) {
  Options options;
  options.add("job-name", job_name);
  options.add("chdir", folder.str());
  options.all.push_back("--output=" + std::string(kJobOutput));  // stdout and stderr
  options.all.push_back("--open-mode=append");  // a requeued or duplicate job keeps the output
  options.all.push_back("--input=/dev/null");
  options.all.push_back("--export=NONE");  // independent of the submitter's environment
  options.all.push_back("--requeue");
  // A duplicate job, submitted because the first answer was lost, waits until the first job ends.
  options.all.push_back("--dependency=singleton");
  if (request.warning.count() > 0)
    options.add("signal", "B:USR1@" + std::to_string(request.warning.count()));
  const std::pair<const char*, const std::string&> optional[] = {
      {"clusters", request.cluster},      {"account", request.account},
      {"partition", request.partition},   {"qos", request.qos},
      {"constraint", request.constraint}, {"reservation", request.reservation}};
  for (const auto& [option, value] : optional)
    if (!value.empty()) options.add(option, value);
  add_resources(request, options);
  for (const std::string& option : request.extra) {
    if (const std::string why = job::refuse_sbatch_option(option); !why.empty())
      reject("extra", option, why);
    options.all.push_back(option);
  }
  return std::move(options.all);
}

}  // namespace xffl::submit
