// A validated experiment: the settings of xffl.yaml, with every default filled in and every path
// resolved.
//
// Other modules do not check an experiment again: names follow their alphabets, numbers their
// ranges, facilities are sorted by name, paths on this machine are absolute.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "xffl/aggregate/server_optimizer.h"
#include "xffl/base/enum_names.h"
#include "xffl/base/names.h"
#include "xffl/job/job_spec.h"
#include "xffl/remote/ssh.h"
#include "xffl/submit/queue_manager.h"
#include "xffl/tokens/prepared.h"

namespace xffl::config {

using xffl::to_string;

// The route of files and commands to a facility.
enum class AccessKind { kLocal, kSsh };
constexpr auto names_of(AccessKind) { return enum_names("local", "ssh"); }

enum class WeightKind { kTokens, kSamples, kEqual };
constexpr auto names_of(WeightKind) { return enum_names("tokens", "samples", "equal"); }

enum class OnMissing { kWait, kSkip, kFail };
constexpr auto names_of(OnMissing) { return enum_names("wait", "skip", "fail"); }

// The effect of a stop on the warning before the walltime. kUse: the update counts with the tokens
// trained so far. kResume: another job continues the training.
enum class OnWalltime { kUse, kResume };
constexpr auto names_of(OnWalltime) { return enum_names("use", "resume"); }

enum class ImageGpu { kNone, kNv, kRocm };
constexpr auto names_of(ImageGpu) { return enum_names("none", "nv", "rocm"); }

// Whether a push sends published models as differences (xffl/pack/). kAuto: only to xffl's own
// trainer, which unpacks the differences.
enum class PackModels { kAuto, kAlways, kNever };
constexpr auto names_of(PackModels) { return enum_names("auto", "always", "never"); }

// The place where `xffl deploy` hashes and unpacks what it has sent, and starts the programs: the
// log-in node, or a short job.
enum class UnpackPlace { kLogin, kJob };
constexpr auto names_of(UnpackPlace) { return enum_names("login", "job"); }

/// "name", "name:port" or "[address]:port"; empty for any other text.
std::optional<remote::SshHost> parse_host(std::string_view text);
/// The inverse of parse_host(); leaves out port 22.
std::string format_host(const remote::SshHost& host);

// A separate route for files, with the keys, jump hosts and streams of Facility::ssh.
struct Transfer {
  std::vector<remote::SshHost> hosts;  // empty: files take the route of commands
  std::string user;                    // after parsing: not empty with hosts
  bool shell = true;                   // false: the hosts speak SFTP only
  PackModels pack = PackModels::kAuto;
  bool operator==(const Transfer&) const = default;
};

// An Apptainer or Singularity image that the trainer runs in.
struct Image {
  std::string file;  // at the facility; empty: the trainer runs without an image
  std::string program = "apptainer";
  std::vector<std::string> binds;    // "/path[:/inside[:ro]]", beside the folders of the job
  std::vector<std::string> options;  // further arguments of `apptainer exec`
  ImageGpu gpu = ImageGpu::kNone;
  bool operator==(const Image&) const = default;
};

// `xffl deploy` at the facility.
struct Deployment {
  UnpackPlace unpack = UnpackPlace::kLogin;
  bool operator==(const Deployment&) const = default;
};

// A limit on the node-hours of the jobs, which the coordinator checks before each submission
// (docs/operator/budgets.md).
struct Budget {
  double node_hours = 0;  // 0: no limit
  double warn_at = 0.8;   // the share of the limit from which on the log warns
  bool operator==(const Budget&) const = default;
};

using tokens::DocumentUnit;

// The format of the files; kIds and kBin hold ids instead of text, and so do tables with kIds.
enum class DataFormat { kAuto, kText, kJsonl, kChat, kParquet, kArrow, kIds, kBin };
constexpr auto names_of(DataFormat) {
  return enum_names("auto", "text", "jsonl", "chat", "parquet", "arrow", "ids", "bin");
}
enum class IdType { kUint16, kInt16, kInt32, kUint32 };
constexpr auto names_of(IdType) { return enum_names("uint16", "int16", "int32", "uint32"); }

// Text at a facility, which `xffl prepare` tokenizes there (docs/user/preparing.md).
struct TextData {
  std::vector<std::string> files;  // absolute paths and patterns as of glob(7); empty: none
  std::string prompt;              // around each document, with {text}; empty: the text alone
  std::string text_field = "text";
  std::string prompt_field;  // JSONL: the field with a document's own prompt
  DocumentUnit document = DocumentUnit::kParagraph;
  bool mask_prompt = false;
  bool pack = true;                   // documents end to end; false: each is a sequence
  double validation_fraction = 0.05;  // of the documents; 0: no validation set
  DataFormat format = DataFormat::kAuto;
  std::string chat_template;                // kChat: its name in the facility's xffl-tokenize
  std::string messages_field = "messages";  // kChat
  IdType id_type = IdType::kUint16;         // kBin
  int64_t end_id = -1;                      // kBin: ends a document; -1: none
  bool operator==(const TextData&) const = default;
};

// Below the work folder: the folder of deployed bundles, and in it the link to the newest one, with
// its programs.
inline constexpr std::string_view kBundlesFolder = "xffl.programs";
inline constexpr std::string_view kNewestBundle = "current";
inline constexpr std::string_view kBundlePrograms = "bin";

struct Facility {
  FacilityName name;
  AccessKind access = AccessKind::kLocal;
  submit::QueueSettings
      scheduler;            // the queue manager of its jobs, with the queue manager's section
  remote::SshSettings ssh;  // of AccessKind::kSsh; without `facility` and `known_hosts`
  Transfer transfer;        // of AccessKind::kSsh
  Image image;
  Deployment deploy;
  RemotePath workdir;  // holds xffl's files at the facility
  // Folders of the log-in nodes that compute nodes mount, as "/e", or "/p/scratch:/scratch" where
  // the path differs there. Empty: all, at the same paths. Every path of a facility is the log-in
  // nodes', and on_compute_nodes() has the job's.
  std::vector<std::string> compute_mounts;
  std::chrono::seconds purge_after{0};  // the site removes files unused for this time; 0: unknown
  std::filesystem::path template_file;  // on this machine; empty: the shipped template of its kind
  Budget budget;                        // of this facility's jobs in the run
  // The queue manager may start a job again by itself, for a node's failure. With a budget of the
  // facility or the run it may not: each start of a job needs its own check.
  bool may_requeue = true;
  int world_size = 1;  // ranks of a job: nodes * tasks_per_node of shape()
  std::vector<std::string>
      trainer_command;  // empty: the built-in trainer; else argv, "--job <job.json>" is appended
  bool trainer_bundle = false;  // the deployed bundle's trainer, which trainer_program then names
  std::string trainer_program;  // built-in trainer at the facility; empty: the program beside this
                                // xffl; behind SSH or in an image, xffl-train in the PATH
  // The site's GPU and network libraries, for the trainer's processes only.
  std::string nccl_plugin;                // a network plug-in of NCCL; empty: NCCL's choice
  std::vector<std::string> library_path;  // libraries (*.so*) and folders
  std::string cuda_compat;                // folder of a newer libcuda.so.1 than the driver's
  // The queue manager's commands and the job's shell read the profiles of a login shell.
  bool login_shell = false;
  std::vector<std::string> modules;      // environment modules loaded before `environment`
  std::vector<std::string> environment;  // shell lines run before the trainer; single lines
  std::vector<std::string> train_data;   // token shards at the facility
  TextData text;                         // instead of shards
  // The folder of the shards that `xffl prepare` makes of `text`; its name has the hash of the
  // options. train_data and validation name its shards. Empty without `text`.
  RemotePath prepared;
  int64_t sequence_length = 0;  // of the longest sequence there; 0: the shards say it
  std::vector<job::ValidationSet> validation;
  std::chrono::milliseconds poll_interval{0};  // 0: the policy's
  job::TrainingSpec training;  // defaults, then the facility's own; steps = steps per round
  bool operator==(const Facility&) const = default;

  /// `path` as compute nodes see it: the deepest of compute_mounts that has it decides. Empty: none
  /// of them has it.
  std::optional<RemotePath> find_on_compute_nodes(const RemotePath& path) const;
  /// The same; a path outside of compute_mounts stays, and so does a name or a relative path.
  RemotePath on_compute_nodes(const RemotePath& path) const {
    return find_on_compute_nodes(path).value_or(path);
  }
  std::string on_compute_nodes(const std::string& path) const {
    return path.starts_with('/') ? on_compute_nodes(RemotePath(path)).str() : path;
  }

  /// The resources of a job.
  submit::JobShape shape() const { return scheduler.manager().shape(scheduler, world_size); }
};

struct Aggregation {
  WeightKind weights = WeightKind::kTokens;
  job::UpdateKind update = job::UpdateKind::kDelta;
  job::FloatType update_dtype = job::FloatType::kBfloat16;
  job::FloatType publish_dtype =
      job::FloatType::kBfloat16;  // the global model; the master stays float32
  double max_share = 0;  // the largest share of a facility in the mean's weights; 0: no limit
  // The name of a row of aggregate::server_optimizers(), and its settings in the row's order.
  std::string server_optimizer{aggregate::server_optimizers().front().name};
  std::vector<double> optimizer_settings = aggregate::server_optimizers().front().defaults();
  bool operator==(const Aggregation&) const = default;

  aggregate::ServerRule rule() const {
    return {aggregate::server_optimizer(server_optimizer), optimizer_settings};
  }
};

// The deadline of a round with on_missing: skip when the policy sets none: without one, a facility
// whose job pends for ever would hold the round for ever.
inline constexpr std::chrono::seconds kSkipDeadline{7 * 24 * 3600};

// Rules that end the run before its last round, checked after each published round. With any of
// them met, the run completes as after its last round (docs/operator/stop_rules.md).
struct StopRules {
  int no_better_for = 0;               // rounds; 0: no rule
  double loss_below = 0;               // mean validation loss in nats; 0: no rule
  double gain_per_node_hour = 0;       // nats of the mean loss, over three rounds; 0: no rule
  std::chrono::seconds wall_clock{0};  // since the run's creation; 0: no rule

  bool need_validation() const {
    return no_better_for > 0 || loss_below > 0 || gain_per_node_hour > 0;
  }
  bool operator==(const StopRules&) const = default;
};

struct RoundPolicy {
  OnMissing on_missing = OnMissing::kWait;
  int quorum = 0;  // facilities that must take part; 0: all, with kSkip at least 1
  // From the quorum to the end of the round, with kSkip and a quorum in the policy; 0: no end.
  std::chrono::seconds quorum_grace{30 * 60};
  // From the first submission of a round, or the plan of the evaluation of the last model; 0: none,
  // with kSkip kSkipDeadline; with kWait only a notification.
  std::chrono::seconds deadline{0};
  int max_attempts = 2;  // trainings per facility and round before the facility counts as missing
  std::chrono::milliseconds poll_interval{1000};
  int keep_rounds = 2;   // rounds whose files stay at the facilities
  int keep_updates = 0;  // newest rounds whose updates stay on the coordinator's disk; 0: all
  int keep_models = 0;   // the same for the global models
  std::chrono::seconds max_outage{7 * 24 * 3600};  // then the facility counts as missing
  OnWalltime on_walltime = OnWalltime::kUse;
  int rerun_budget = 10;  // jobs repeated per facility and round after a node failure, preemption
                          // or the walltime; they do not count as attempts
  bool evaluate_last = true;  // after the last round, one more job at each facility with validation
                              // sets measures the last global model
  // L2 norm of an update's change over that of its base; 0: no limit.
  // docs/decisions/0015-the-default-of-max-change.md has measurements.
  double max_change = 10;
  Budget budget;  // of the whole run
  StopRules stop_when;

  /// The deadline in effect; 0: none.
  std::chrono::seconds round_deadline() const {
    return deadline.count() == 0 && on_missing == OnMissing::kSkip ? kSkipDeadline : deadline;
  }
  bool operator==(const RoundPolicy&) const = default;
};

// Files about the run for other programs, which the coordinator keeps up to date.
struct Observe {
  std::filesystem::path prometheus;  // empty: none
  bool operator==(const Observe&) const = default;
};

// A program of this machine that the coordinator starts after events of the run.
struct Hooks {
  std::vector<std::string> on = {"run_stopped", "run_completed", "facility_paused",
                                 "facility_missing"};
  std::vector<std::string> command;  // argv; empty: no hooks
  std::chrono::seconds timeout{30};
  bool operator==(const Hooks&) const = default;
};

struct Experiment {
  ProjectName project;
  std::filesystem::path project_folder;
  std::filesystem::path model;    // HF folder that round 1 starts from
  std::filesystem::path adapter;  // with training.lora: PEFT folder that round 1 starts from;
                                  // empty: a fresh one
  int rounds = 1;
  Aggregation aggregation;
  RoundPolicy policy;
  Observe observe;
  Hooks hooks;
  std::vector<Facility> facilities;  // sorted by name, at least one

  const Facility& facility(const FacilityName& name) const;  // throws kNotFound
  /// The interval between two polls of the facility's jobs.
  std::chrono::milliseconds poll_interval(const Facility& facility) const;
  bool operator==(const Experiment&) const = default;
};

}  // namespace xffl::config
