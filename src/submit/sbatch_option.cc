#include <algorithm>
#include <array>
#include <span>

#include "xffl/submit/slurm.h"

namespace xffl::submit {
namespace {

struct Reserved {
  std::string_view word;
  std::string_view key;  // the key of xffl.yaml instead; empty: none
};

// sbatch accepts unambiguous prefixes of long options ("--dep"), so xffl reserves the prefixes,
// too.
constexpr std::array kSbatch = std::to_array<Reserved>({
    {"account", "account"},
    {"array", ""},
    {"chdir", ""},
    {"clusters", "cluster"},
    {"constraint", "constraint"},
    {"cpus-per-task", "cpus_per_task"},
    {"dependency", ""},
    {"error", ""},
    {"exclusive", "exclusive"},
    {"export", ""},
    {"export-file", ""},
    {"get-user-env", ""},
    {"gid", ""},
    {"gpus", "gpus_per_node"},
    {"gpus-per-node", "gpus_per_node"},
    {"gres", "gpus_per_node"},
    {"help", ""},
    {"hold", ""},
    {"input", ""},
    {"job-name", ""},
    {"mem", "memory_per_node"},
    {"no-requeue", ""},
    {"nodes", "nodes"},
    {"ntasks", "tasks_per_node"},
    {"ntasks-per-node", "tasks_per_node"},
    {"open-mode", ""},
    {"output", ""},
    {"parsable", ""},
    {"partition", "partition"},
    {"qos", "qos"},
    {"quiet", ""},
    {"requeue", ""},
    {"reservation", "reservation"},
    {"signal", "warning"},
    {"test-only", ""},
    {"time", "time"},
    {"uid", ""},
    {"usage", ""},
    {"verbose", ""},
    {"version", ""},
    {"wait", ""},
    {"wrap", ""},
});

constexpr std::array kSrun = std::to_array<Reserved>({
    {"chdir", ""},
    {"error", ""},
    {"export", ""},
    {"input", ""},
    {"jobid", ""},
    {"kill-on-bad-exit", ""},
    {"label", ""},
    {"nodes", "nodes"},
    {"ntasks", "tasks_per_node"},
    {"ntasks-per-node", ""},
    {"open-mode", ""},
    {"output", ""},
    {"prolog", ""},
    {"epilog", ""},
    {"task-prolog", ""},
    {"task-epilog", ""},
    {"test-only", ""},
});

constexpr std::string_view kWord = "abcdefghijklmnopqrstuvwxyz0123456789-";
constexpr std::string_view kValue =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.,:/@%+&|*()[]=~-";

std::string validate(std::string_view option, std::span<const Reserved> table,
                     std::string_view program) {
  const std::string shape = "should be --option or --option=value without blanks or quotes";
  if (!option.starts_with("--")) return shape;
  const size_t equals = std::min(option.find('='), option.size());
  const std::string_view word = option.substr(2, equals - 2);
  if (word.empty() || word.front() == '-' || option.size() > 256 ||
      word.find_first_not_of(kWord) != std::string_view::npos)
    return shape;
  if (equals < option.size() &&
      (equals + 1 == option.size() ||
       option.substr(equals + 1).find_first_not_of(kValue) != std::string_view::npos))
    return shape;
  for (const auto& [reserved, key] : table) {
    if (!reserved.starts_with(word)) continue;
    if (!key.empty()) return "has a key of its own: '" + std::string(key) + "'";
    return "is an option of " + std::string(program) + " that xffl sets itself or that its jobs " +
           "cannot have";
  }
  return {};
}

}  // namespace

std::string validate_sbatch_option(std::string_view option) {
  return validate(option, kSbatch, "sbatch");
}

std::string validate_srun_option(std::string_view option) {
  return validate(option, kSrun, "srun");
}

}  // namespace xffl::submit
