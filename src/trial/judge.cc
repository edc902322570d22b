#include "xffl/trial/judge.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>

#include "xffl/base/log.h"
#include "xffl/job/cuda_driver.h"

namespace xffl::trial {
namespace {

using Severity = CheckResult::Severity;

// The part of a network's rate that an all-reduce reaches at least. Sites measured over the fast
// network more than 100 %, over TCP on the same wires 2 to 13 %.
constexpr double kNetworkFloor = 0.25;
constexpr double kFullMemory = 0.92;  // of a GPU: fragmentation needs the rest
// About the part of a step's time that its forward pass takes.
constexpr double kForwardPart = 1.0 / 3;

std::string number(const char* format, double value) {
  char text[60];
  std::snprintf(text, sizeof text, format, value);
  return text;
}
std::string gb(double bytes) { return number("%.1f GB", bytes / 1e9); }

int major(const std::string& version) {
  int value = 0;
  for (const char c : version) {
    if (c < '0' || c > '9' || value > 99999) break;
    value = value * 10 + (c - '0');
  }
  return value;
}

class Judgement {
 public:
  Judgement(const Expected& expected, const Found& found) : expected_(expected), found_(found) {}

  std::vector<CheckResult> run() {
    for (const std::string& problem : found_.unreadable)
      add(Severity::kError, "job's files", problem,
          "does another program write into the job's folder? repeat the command");
    nodes();
    for (const NodeFacts& node : found_.nodes) this->node(node);
    if (expected_.own_trainer) {
      add(Severity::kWarning, "trainer",
          "not checked: the facility has a trainer of its own, which has no `check`",
          "run one round with few steps");
      return std::move(results_);
    }
    ranks();
    data();
    report();
    return std::move(results_);
  }

 private:
  void add(Severity severity, std::string check, std::string message, std::string fix = "") {
    results_.push_back({severity, std::move(check), std::move(message), std::move(fix)});
  }
  std::string key(const std::string& name) const {
    return "facilities." + expected_.facility + "." + name;
  }

  void nodes() {
    const int found = static_cast<int>(found_.nodes.size());
    const std::string message =
        std::to_string(found) + " of " + std::to_string(expected_.nodes) + " nodes have answered";
    if (found >= expected_.nodes) return add(Severity::kOk, "nodes", message);
    add(Severity::kError, "nodes",
        message + (found_.output.empty() ? "" : "; the job's output ends with:" + found_.output),
        "does a node mount the work folder, and does the job's script start there? see the "
        "output");
  }

  void node(const NodeFacts& node) {
    if (!expected_.arch.empty() && node.arch != expected_.arch)
      add(Severity::kError, "architecture",
          node.host + " is " + node.arch + ", the log-in node is " + expected_.arch,
          "use a trainer for " + node.arch + ": xffl deploy " + expected_.facility + " with the " +
              (expected_.has_image ? "image" : "bundle") + " of that architecture");
    for (const std::string& probe : node.hung)
      add(Severity::kError, probe, "on " + node.host + " the probe '" + probe + "' does not end",
          probe == "driver"
              ? "the GPU driver of this node hangs: tell the site, and " + exclude(node)
              : "tell the site, and " + exclude(node));
    paths(node);
    space(node);
    driver(node);
    std::string facts = node.host + ": " + node.arch +
                        (node.glibc.empty() ? "" : ", glibc " + node.glibc) + ", " +
                        std::to_string(node.cpus) + " CPUs, " +
                        gb(static_cast<double>(node.available)) + " of memory";
    if (!node.driver.empty()) facts += ", driver " + node.driver;
    if (!node.amd_driver.empty()) facts += ", driver " + node.amd_driver;
    for (const std::string& fabric : node.fabrics) facts += ", " + fabric;
    add(Severity::kOk, "node", facts);
  }

  std::string exclude(const NodeFacts& node) const {
    if (expected_.queue_manager != "slurm" || node.host.empty()) return "exclude the node";
    return "exclude the node (" + key("slurm.extra") +
           ": --exclude=" + node.host.substr(0, node.host.find('.')) + ")";
  }

  // With a library that is missing on one node, NCCL takes TCP there and says nothing.
  void library(const NodeFacts& node, const std::string& path, PathState state) {
    add(Severity::kError, "library",
        "on " + node.host + " the library " + path +
            (state == PathState::kMissing ? " does not exist"
             : state == PathState::kHung  ? " cannot be read: the file system hangs"
                                          : " cannot be read"),
        "tell the site, and " + exclude(node) + "; or correct the path (" + key("library_path") +
            ", nccl_plugin or cuda_compat)");
  }

  void paths(const NodeFacts& node) {
    const size_t count = expected_.paths.size();
    for (const auto& [number, state] : node.paths) {
      const size_t place = static_cast<size_t>(number);
      if (place >= count + expected_.libraries.size() || state == PathState::kOk) continue;
      if (place >= count) {
        library(node, expected_.libraries[place - count], state);
        continue;
      }
      const std::string& path = expected_.paths[place];
      if (state == PathState::kHung)
        add(Severity::kError, "mount", "on " + node.host + " reading " + path + " does not end",
            "the file system hangs on this node: tell the site, and " + exclude(node));
      else if (state == PathState::kMissing)
        add(Severity::kError, "mount", "on " + node.host + " " + path + " does not exist",
            "compute nodes may mount other file systems than log-in nodes: use a folder that they "
            "mount, or " +
                exclude(node));
      else
        add(Severity::kError, "mount", "on " + node.host + " " + path + " cannot be read",
            "is it readable for your account on compute nodes?");
    }
  }

  void space(const NodeFacts& node) {
    if (node.free < 0 || expected_.needed_bytes == 0) return;
    if (static_cast<double>(node.free) >= static_cast<double>(expected_.needed_bytes)) return;
    add(Severity::kError, "free space",
        node.host + " sees " + gb(static_cast<double>(node.free)) +
            " free in the work folder; a round needs " +
            gb(static_cast<double>(expected_.needed_bytes)),
        "remove files, ask for more space, or choose another workdir");
  }

  // The toolkit that the trainer was built with; empty for CPUs, and when no rank has answered.
  std::string toolkit() const { return found_.ranks.empty() ? "" : found_.ranks.front().cuda; }

  // A node of a job with GPUs. A trainer of the user's own may use another maker's.
  void missing_nvidia_driver(const NodeFacts& node) {
    if (node.amd_driver.empty())
      add(expected_.own_trainer ? Severity::kWarning : Severity::kError, "driver",
          node.host + " has no NVIDIA driver and no AMD driver",
          "is this the partition with GPUs?");
    else if (!expected_.own_trainer)
      add(Severity::kError, "driver",
          node.host + " has AMD's driver " + node.amd_driver + ", and xffl-train has no ROCm build",
          "name a trainer of your own (" + key("trainer") +
              ": {command: [...]}), or use nodes with NVIDIA GPUs");
  }

  void driver(const NodeFacts& node) {
    if (node.driver.empty()) {
      if (expected_.gpus_per_node > 0) missing_nvidia_driver(node);
      return;
    }
    if (node.gpus > 0 && node.gpus < expected_.gpus_per_node)
      add(Severity::kError, "GPUs",
          node.host + " shows " + std::to_string(node.gpus) + " GPUs, the job asked for " +
              std::to_string(expected_.gpus_per_node),
          "correct gpus_per_node, or tell the site");
    const int lowest = lowest_driver(toolkit());
    if (lowest == 0 || major(node.driver) >= lowest) return;
    // With the forward-compatibility folder an older driver works, and a rank has its GPU.
    const bool works = std::any_of(found_.ranks.begin(), found_.ranks.end(), [&](const auto& rank) {
      return rank.host == node.host && !rank.gpu.empty() && rank.problem.empty();
    });
    add(works ? Severity::kOk : Severity::kError, "driver",
        node.host + " has the driver " + node.driver + "; CUDA " + toolkit() +
            " of the trainer needs " + std::to_string(lowest) + " or newer" +
            (works ? " (a forward-compatibility library bridges it)" : ""),
        works ? ""
              : "set " + key("cuda_compat") + " to the site's forward-compatibility folder (CUDA " +
                    std::to_string(major(toolkit())) +
                    "'s `compat`, of its CUDA or HPC SDK module), or deploy the flavour " +
                    std::string(job::flavour_for_driver(major(node.driver), node.arch)));
  }

  void ranks() {
    if (found_.ranks.empty())
      return add(Severity::kError, "trainer",
                 "xffl-train has not started" +
                     (found_.output.empty() ? std::string()
                                            : "; the job's output ends with:" + found_.output),
                 no_trainer() + "; a trainer of an earlier release has no `check`");
    const auto other =  // one node may have an older program
        std::find_if(found_.ranks.begin(), found_.ranks.end(), [&](const job::RankCheck& rank) {
          return !rank.trainer.starts_with("xffl-train " + expected_.version + " ");
        });
    if (other == found_.ranks.end())
      add(Severity::kOk, "trainer", found_.ranks.front().trainer);
    else
      add(Severity::kError, "trainer",
          other->trainer + " on " + other->host + ", this xffl is " + expected_.version,
          "install the same version at the facility");
    if (static_cast<int>(found_.ranks.size()) < expected_.ranks)
      add(Severity::kError, "ranks",
          std::to_string(found_.ranks.size()) + " of " + std::to_string(expected_.ranks) +
              " ranks have started",
          "see the job's output:" + found_.output);
    double slowest = 0;
    int64_t memory = 0;
    for (const job::RankCheck& rank : found_.ranks) {
      if (slowest == 0 || rank.product_tflops < slowest) slowest = rank.product_tflops;
      if (memory == 0 || rank.memory_bytes < memory) memory = rank.memory_bytes;
    }
    devices();
    const job::RankCheck& first = found_.ranks.front();
    if (first.problem.empty())
      add(Severity::kOk, "devices",
          std::to_string(found_.ranks.size()) + " ranks, " +
              (first.gpu.empty() ? "CPU" : log::printable(first.gpu, 100)) + ", at least " +
              gb(static_cast<double>(memory)) + ", a bf16 product with " +
              number("%.3g TFLOP/s", slowest));
  }

  std::string no_trainer() const {
    if (!expected_.has_image)
      return "put a bundle there: xffl deploy " + expected_.facility + " BUNDLE, or correct " +
             key("trainer");
    return "does a module of " + key("modules") + " provide the program of " +
           key("image.program") + ", is the image there (" + key("image.file") +
           "), and has it xffl-train?";
  }

  // The bundle for the GPUs of a node.
  std::string flavour_for(const std::string& host) const {
    for (const NodeFacts& node : found_.nodes) {
      if (node.host != host || node.driver.empty()) continue;
      const std::string driver = " (the driver is " + node.driver + ")";
      const std::string_view flavour = job::flavour_for_driver(major(node.driver), node.arch);
      if (flavour != "cpu") return "the flavour " + std::string(flavour) + driver;
      return "the flavour cu13, and set " + key("cuda_compat") +
             " to the site's forward-compatibility folder" + driver;
    }
    return "a flavour for CUDA";
  }

  // The problem of a rank's device with its remedy; empty: none.
  std::pair<std::string, std::string> device_problem(const job::RankCheck& rank) const {
    if (!rank.problem.empty())
      return {rank.problem,
              "one GPU for each rank: compare tasks_per_node with gpus_per_node, and see the "
              "driver above"};
    if (expected_.gpus_per_node == 0 || !rank.gpu.empty()) return {};
    return {"computes on the CPU, but the job has " + std::to_string(expected_.gpus_per_node) +
                " GPUs on a node",
            rank.cuda.empty() ? "the trainer was built for CPUs: deploy " + flavour_for(rank.host)
                              : "no GPU is visible to the rank: see the driver above"};
  }

  // One line for each problem, not for each rank.
  void devices() {
    struct Affected {
      const job::RankCheck* first = nullptr;
      size_t others = 0;
    };
    std::map<std::pair<std::string, std::string>, Affected> problems;
    for (const job::RankCheck& rank : found_.ranks) {
      const auto problem = device_problem(rank);
      if (problem.first.empty()) continue;
      Affected& affected = problems[problem];
      if (affected.first == nullptr)
        affected.first = &rank;
      else
        ++affected.others;
    }
    for (const auto& [problem, affected] : problems)
      add(Severity::kError, "device",
          "rank " + std::to_string(affected.first->rank) + " on " + affected.first->host +
              (affected.others > 0 ? " and " + std::to_string(affected.others) + " other ranks"
                                   : "") +
              ": " + problem.first,
          problem.second);
  }

  void data() {
    std::set<std::string> seen;
    for (const job::RankCheck& rank : found_.ranks)
      for (const job::CheckedShard& shard : rank.data) {
        const std::string problem = this->problem(shard);
        if (!problem.empty() && seen.insert(shard.path + problem).second)
          add(Severity::kError, "data", rank.host + ": " + shard.path + " " + problem,
              remedy(shard));
      }
    if (seen.empty() && !found_.ranks.empty())
      add(Severity::kOk, "data",
          std::to_string(found_.ranks.front().data.size()) +
              " shards are readable on all ranks and fit the model");
  }
  std::string problem(const job::CheckedShard& shard) const {
    if (!shard.problem.empty()) return "cannot be read: " + shard.problem;
    if (shard.vocab_size > expected_.vocab_size)
      return "has a vocabulary of " + std::to_string(shard.vocab_size) + ", the model has " +
             std::to_string(expected_.vocab_size);
    if (shard.sequence_length > expected_.max_positions)
      return "has sequences of " + std::to_string(shard.sequence_length) +
             " tokens, the model takes " + std::to_string(expected_.max_positions);
    return "";
  }
  std::string remedy(const job::CheckedShard& shard) const {
    if (!shard.problem.empty()) return "see the mounts above, or copy the shard again";
    const std::string prepare = "xffl prepare " + expected_.facility;
    const bool has_larger_vocabulary = shard.vocab_size > expected_.vocab_size;
    if (has_larger_vocabulary)
      return "tokenize the text with the tokenizer of this model: " + prepare +
             ", or xffl-tokenize encode";
    const std::string longest = std::to_string(expected_.max_positions);
    if (!expected_.prepared.empty() && shard.path.starts_with(expected_.prepared + "/"))
      return "set " + key("data.sequence_length") + " to " + longest + ", then " + prepare;
    return "tokenize the text with xffl-tokenize encode --sequence-length " + longest;
  }

  void report() {
    if (found_.ranks.empty()) return;
    if (!found_.report)
      return add(Severity::kError, "ranks", "the ranks have not met" + output(),
                 "see the job's output");
    const job::CheckReport& report = *found_.report;
    network(report);
    signal(report);
    if (!report.problem.empty())
      add(Severity::kError, report.part, log::printable(report.problem, 1000), remedy(report.part));
    else if (!report.complete)
      add(Severity::kError, report.part, "the job has ended in this part" + output(),
          remedy(report.part));
    steps(report);
  }
  std::string output() const {
    return found_.output.empty() ? "" : "; its output ends with:" + found_.output;
  }
  static std::string remedy(const std::string& part) {
    if (part == "rendezvous" || part == "all-reduce")
      return "the ranks cannot reach each other: is NCCL_SOCKET_IFNAME (GLOO_SOCKET_IFNAME) "
             "needed, and are all nodes' libraries the same?";
    if (part == "model") return "is there space in the work folder?";
    return "see the message, and docs/user/training.md for memory";
  }

  // The names of the networks that NCCL chose, over the machines.
  std::set<std::string> networks() const {
    std::set<std::string> names;
    for (const NcclLog& log : found_.nccl)
      if (!log.network.empty()) names.insert(log.network);
    return names;
  }

  void network(const job::CheckReport& report) {
    if (report.all_reduce_seconds <= 0 || report.ranks < 2) return;
    const double ranks = report.ranks;
    const double gbytes = 2 * (ranks - 1) / ranks * static_cast<double>(report.all_reduce_bytes) /
                          report.all_reduce_seconds / 1e9;
    std::string message = "all-reduce of " + std::to_string(report.ranks) + " ranks on " +
                          std::to_string(report.nodes) + " nodes: " + number("%.2f GB/s", gbytes) +
                          " over " + report.backend;
    const std::set<std::string> names = networks();
    for (const std::string& name : names) message += ", " + name;
    double gbits = 0;
    std::string fabric;
    for (const NodeFacts& node : found_.nodes) {
      if (gbits == 0 || node.fabric_gbits < gbits) gbits = node.fabric_gbits;
      if (fabric.empty() && !node.fabrics.empty()) fabric = node.fabrics.front();
    }
    if (report.nodes < 2 || report.backend != "nccl") return add(Severity::kOk, "network", message);
    std::string plugin;
    for (const NcclLog& log : found_.nccl)
      if (!log.plugin_problem.empty()) plugin = "; NCCL says: " + log.plugin_problem;
    if (names.contains("Socket") && !fabric.empty())
      return add(Severity::kError, "network",
                 message + ": TCP, although the nodes have " + fabric + plugin,
                 "name the site's NCCL plug-in (" + key("nccl_plugin") +
                     ", or load its module by " + key("modules") +
                     "), and name the network so that a job fails instead of being slow: " +
                     key("environment") + ": export NCCL_NET=\"AWS Libfabric\" (or IB)");
    if (names.size() > 1)
      return add(Severity::kError, "network", message + ": the nodes use different networks",
                 "the NCCL plug-in is missing on some nodes" + plugin);
    const double floor = kNetworkFloor * gbits / 8;
    if (gbits > 0 && gbytes < floor)
      return add(Severity::kWarning, "network",
                 message + "; the nodes' ports have " + number("%.0f Gb/s", gbits) + ", at least " +
                     number("%.1f GB/s", floor) + " are usual",
                 "compare the NCCL settings (NCCL_*, FI_*) with the site's documentation");
    add(Severity::kOk, "network", message);
  }

  void signal(const job::CheckReport& report) {
    if (report.signalled_ranks < 0) return;
    const std::string message = "the warning before the walltime reached " +
                                std::to_string(report.signalled_ranks) + " of " +
                                std::to_string(report.ranks) + " ranks";
    if (report.signalled_ranks == report.ranks) return add(Severity::kOk, "signal", message);
    add(Severity::kWarning, "signal", message,
        "a job that reaches its walltime would lose its work since the last checkpoint: set "
        "training.checkpoint_interval, and see that the lines of environment start no other shell");
  }

  void steps(const job::CheckReport& report) {
    const auto speed =
        round_speed(report.step_seconds, report.step_tokens,
                    std::max<int64_t>(1, expected_.steps_per_round), expected_.round_nodes);
    if (!speed) return;
    std::string measured = number("%.0f tokens/s", speed->tokens_per_second) + " with " +
                           std::to_string(report.ranks) + " ranks (" +
                           number("%.3g s a step", report.step_seconds) + ")";
    if (expected_.steps_per_round == 0) {  // a round has epochs: its steps are not known here
      add(Severity::kOk, "speed", measured);
      return memory(report);
    }
    const double rate = speed->tokens_per_second * expected_.round_ranks / expected_.ranks;
    const double validation =
        validation_hours(validation_sizes(expected_, found_), expected_.validation_samples, rate);
    const RoundForecast forecast = forecast_round(*speed, expected_.steps_per_round, validation,
                                                  expected_.walltime, expected_.warning);
    add(Severity::kOk, "speed", measured);
    add(forecast.suffices ? Severity::kOk : Severity::kWarning, "walltime", forecast.text,
        forecast.suffices ? ""
        : forecast.validates_too_long
            ? "limit the validation by training.validation_samples (sequences of each set, now " +
                  std::to_string(expected_.validation_samples) +
                  (expected_.validation_samples > 0 ? "" : ": all") + "), or raise the walltime"
        : expected_.resumes
            ? "further jobs continue the round (policy.on_walltime: resume)"
            : "lower training.steps_per_round, raise the walltime, or set policy.on_walltime: "
              "resume");
    memory(report);
  }

  void memory(const job::CheckReport& report) {
    int64_t least = 0;
    bool gpu = false;
    for (const job::RankCheck& rank : found_.ranks) {
      if (least == 0 || rank.memory_bytes < least) least = rank.memory_bytes;
      gpu = gpu || !rank.gpu.empty();
    }
    const auto peak = static_cast<double>(report.peak_memory_bytes);
    const std::string message = "a rank needs at most " + gb(peak) + " of " +
                                gb(static_cast<double>(least)) + (gpu ? " GPU memory" : " memory");
    const bool tight = gpu && peak > kFullMemory * static_cast<double>(least);
    add(tight ? Severity::kWarning : Severity::kOk, "memory", message,
        tight ? "a longer batch may not fit: use more sharding, recompute: full, or a smaller "
                "micro_batch_size"
              : "");
  }

  const Expected& expected_;
  const Found& found_;
  std::vector<CheckResult> results_;
};

}  // namespace

int lowest_driver(const std::string& cuda) { return job::oldest_driver(major(cuda)); }

std::optional<RoundSpeed> round_speed(double step_seconds, double step_tokens, int64_t steps,
                                      int nodes) {
  if (step_seconds <= 0 || steps < 1) return std::nullopt;
  const double hours = step_seconds * static_cast<double>(steps) / 3600;
  return RoundSpeed{
      .tokens_per_second = step_tokens / step_seconds, .hours = hours, .node_hours = hours * nodes};
}

std::vector<SetSize> validation_sizes(const Expected& expected, const Found& found) {
  std::vector<SetSize> sizes;
  if (found.ranks.empty()) return sizes;
  const std::vector<job::CheckedShard>& shards = found.ranks.front().data;
  for (const std::string& path : expected.validation) {
    const auto shard = std::find_if(shards.begin(), shards.end(),
                                    [&](const auto& each) { return each.path == path; });
    if (shard != shards.end()) sizes.push_back({shard->sequences, shard->sequence_length});
  }
  return sizes;
}

double validation_hours(const std::vector<SetSize>& sets, int64_t samples,
                        double tokens_per_second) {
  double tokens = 0;
  for (const SetSize& set : sets) {
    const int64_t sequences = samples > 0 ? std::min(samples, set.sequences) : set.sequences;
    tokens += static_cast<double>(sequences) * static_cast<double>(set.sequence_length);
  }
  if (tokens == 0 || tokens_per_second <= 0) return 0;
  return 2 * tokens * kForwardPart / tokens_per_second / 3600;
}

RoundForecast forecast_round(const RoundSpeed& speed, int64_t steps, double validation_hours,
                             std::chrono::seconds walltime, std::chrono::seconds warning) {
  RoundForecast forecast;
  forecast.text = "a round of " + std::to_string(steps) + " steps takes " +
                  number("%.2g h", speed.hours) + ", " +
                  number("%.2g node-hours", speed.node_hours);
  if (const double minutes = validation_hours * 60; minutes >= 0.5)
    forecast.text += ", and " + number("%.0f min of validation", minutes);
  if (walltime.count() == 0) return forecast;
  const double usable = static_cast<double>((walltime - warning).count()) / 3600;
  forecast.suffices = speed.hours + validation_hours <= usable;
  forecast.validates_too_long =
      !forecast.suffices && (speed.hours <= usable || validation_hours / 2 > usable);
  forecast.text += "; the walltime of " +
                   number("%.2g h", static_cast<double>(walltime.count()) / 3600) +
                   (forecast.suffices ? " suffices" : " does not suffice");
  return forecast;
}

std::vector<CheckResult> judge(const Expected& expected, const Found& found) {
  return Judgement(expected, found).run();
}

}  // namespace xffl::trial
