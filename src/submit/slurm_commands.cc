#include "slurm_commands.h"

#include <array>
#include <span>

#include "slurm_answers.h"

namespace xffl::submit {
namespace {

constexpr auto kSubmitVariables = std::to_array<std::string_view>({
    "SBATCH_ARRAY_INX",
    "SBATCH_DEBUG",
    "SBATCH_GET_USER_ENV",
    "SBATCH_IGNORE_PBS",
    "SBATCH_TEST_ONLY",
    "SBATCH_WAIT",
    "SBATCH_WAIT_ALL_NODES",
    "SLURM_CLUSTERS",
});
constexpr auto kQueueVariables = std::to_array<std::string_view>({
    "SQUEUE_ACCOUNT",    "SQUEUE_ACCOUNTS",     "SQUEUE_ALL",       "SQUEUE_ARRAY",
    "SQUEUE_FEDERATION", "SQUEUE_FORMAT",       "SQUEUE_FORMAT2",   "SQUEUE_LICENSES",
    "SQUEUE_LOCAL",      "SQUEUE_NAMES",        "SQUEUE_PARTITION", "SQUEUE_PRIORITY",
    "SQUEUE_QOS",        "SQUEUE_SIBLING",      "SQUEUE_SORT",      "SQUEUE_STATES",
    "SQUEUE_USERS",      "SLURM_CLUSTERS",      "SACCT_FORMAT",     "SACCT_LOCAL",
    "SACCT_FEDERATION",  "SCANCEL_ACCOUNT",     "SCANCEL_BATCH",    "SCANCEL_CTLD",
    "SCANCEL_FULL",      "SCANCEL_INTERACTIVE", "SCANCEL_NAME",     "SCANCEL_PARTITION",
    "SCANCEL_QOS",       "SCANCEL_STATE",       "SCANCEL_USER",     "SCANCEL_VERBOSE",
    "SCANCEL_WCKEY",
});

std::vector<std::string> environment(std::span<const std::string_view> without,
                                     const char* times = "%s") {
  std::vector<std::string> words{"env"};
  for (const std::string_view variable : without) {
    words.emplace_back("-u");
    words.emplace_back(variable);
  }
  words.emplace_back("LC_ALL=C");
  words.emplace_back("SLURM_TIME_FORMAT=" + std::string(times));
  return words;
}

void append(std::vector<std::string>& words, std::vector<std::string> more) {
  for (std::string& word : more) words.push_back(std::move(word));
}

void append_cluster(std::vector<std::string>& words, const std::string& cluster) {
  if (!cluster.empty()) words.push_back("--clusters=" + cluster);
}

std::string joined(const std::vector<std::string>& names) {
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ",") + name;
  return list;
}

}  // namespace

std::vector<std::string> submit_command(const std::vector<std::string>& options, bool test_only) {
  // A test's answer is for people: its start is in the site's time.
  std::vector<std::string> words = environment(kSubmitVariables, test_only ? "standard" : "%s");
  append(words, {"sbatch", "--parsable"});
  if (test_only) words.emplace_back("--test-only");
  append(words, options);
  return words;
}

std::vector<std::string> queue_command(const std::vector<std::string>& names,
                                       const std::string& cluster) {
  // The shell only orders the three; the words of squeue are its arguments.
  std::vector<std::string> words = environment(kQueueVariables);
  append(words, {"sh", "-c", "date +%s && \"$@\" && echo " + std::string(kEndMark), "sh", "squeue",
                 "--noheader", "--me", "--states=all", "--name=" + joined(names),
                 "--format=" + std::string(kQueueFormat)});
  append_cluster(words, cluster);
  return words;
}

std::vector<std::string> accounting_command(const std::vector<std::string>& names,
                                            const std::string& cluster) {
  std::vector<std::string> words = environment(kQueueVariables);
  append(words, {"sh", "-c", "\"$@\" && echo " + std::string(kEndMark), "sh", "sacct", "--noheader",
                 "--parsable2", "--allocations", "--starttime=now-30days",
                 "--name=" + joined(names), "--format=" + std::string(kAccountingFields)});
  append_cluster(words, cluster);
  return words;
}

std::vector<std::string> cancel_command(const std::string& id, const std::string& name,
                                        const std::string& cluster) {
  std::vector<std::string> words = environment(kQueueVariables);
  append(words, {"scancel", "--me", "--name=" + name});
  append_cluster(words, cluster);
  words.push_back(id);
  return words;
}

}  // namespace xffl::submit
