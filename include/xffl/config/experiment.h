// A validated experiment: what xffl.yaml says, with every default filled in and every path
// resolved.
//
// Everything downstream takes it as given: names follow their alphabets, numbers their ranges,
// facilities are sorted by name, paths on this machine are absolute.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "xffl/base/names.h"
#include "xffl/job/job_spec.h"

namespace xffl::config {

enum class AccessKind { kLocal, kSsh };         // how files and commands reach the facility
enum class SchedulerKind { kProcess, kSlurm };  // who starts its jobs
enum class WeightKind { kTokens, kSamples, kEqual };
enum class OnMissing { kWait, kSkip, kFail };
// What becomes of a training that stopped on the warning before its walltime: its update counts
// with the tokens that it has seen, or it is continued by another job.
enum class OnWalltime { kUse, kResume };
enum class GpuOption { kGpusPerNode, kGres };  // how a site's sbatch wants to be asked for GPUs
enum class ImageGpu { kNone, kNv, kRocm };

struct Host {
  std::string name;  // a DNS name, an IPv4 address, or an IPv6 address without its brackets
  int port = 22;
  bool operator==(const Host&) const = default;
};
/// "name", "name:port" or "[address]:port"; empty when it is none.
std::optional<Host> parse_host(std::string_view text);
std::string to_string(const Host& host);

// Of access: ssh.
struct Ssh {
  std::vector<Host> hosts;  // equivalent log-in nodes, tried in order
  std::string user;
  std::vector<std::string> keys;  // private keys, absolute paths on this machine
  std::vector<Host> jump;         // hosts to go through, first one first
  bool agent = true;              // also ask SSH_AUTH_SOCK
  int streams = 4;                // channels or requests in flight of one transfer
  std::string renew;              // what a person types for a new certificate; never run
  bool operator==(const Ssh&) const = default;
};

// Whether published models travel as differences (xffl/pack/): kAuto where xffl's own trainer,
// which unpacks them, is the one that runs.
enum class PackModels { kAuto, kAlways, kNever };

// Another way for files, with the keys, jump hosts and streams of Ssh.
struct Transfer {
  std::vector<Host> hosts;  // empty: files take the way of the commands
  std::string user;         // Ssh's when it was not given
  bool shell = true;        // false: the hosts speak SFTP only
  PackModels pack = PackModels::kAuto;
  bool operator==(const Transfer&) const = default;
};

// Of scheduler: slurm. Texts hold no blanks, quotes or line breaks.
struct Slurm {
  std::string account, partition, qos, constraint, reservation;  // empty: not given
  int nodes = 1;
  int gpus_per_node = 0;
  std::string gpu_type;  // "a100", where the site wants it named
  GpuOption gpu_option = GpuOption::kGpusPerNode;
  int tasks_per_node = 0;       // ranks on a node; parsed: at least 1
  int cpus_per_task = 0;        // 0: the site's default
  int64_t memory_per_node = 0;  // bytes; 0: the site's default
  bool exclusive = false;
  std::chrono::seconds time{3600};    // walltime
  std::chrono::seconds warning{300};  // the job is told to stop so long before it
  std::string cluster;                // of a site with several; empty: the local one
  std::vector<std::string> extra;     // further "--option" or "--option=value" of sbatch
  std::vector<std::string> srun;      // the same of srun
  std::chrono::milliseconds settle_time{60'000};  // a job may appear so long after a lost answer
  std::chrono::milliseconds command_timeout{60'000};  // of one Slurm command
  // How long a job that has reported keeps its nodes for the facility's next round; 0: not at all.
  std::chrono::seconds keep_allocation{0};
  bool operator==(const Slurm&) const = default;
};

// An Apptainer or Singularity image that the trainer runs in.
struct Image {
  std::string file;  // at the facility; empty: the trainer runs without an image
  std::string program = "apptainer";
  std::vector<std::string> binds;    // "/path[:/inside[:ro]]", beside the folders of the job
  std::vector<std::string> options;  // further words of `apptainer exec`
  ImageGpu gpu = ImageGpu::kNone;
  bool operator==(const Image&) const = default;
};

struct Facility {
  FacilityName name;
  AccessKind access = AccessKind::kLocal;
  SchedulerKind scheduler = SchedulerKind::kProcess;
  Ssh ssh;            // of AccessKind::kSsh
  Transfer transfer;  // of AccessKind::kSsh
  Slurm slurm;        // of SchedulerKind::kSlurm
  Image image;
  RemotePath workdir;                   // xffl's files at the facility live under it
  std::chrono::seconds purge_after{0};  // the site removes files unused for so long; 0: not known
  std::filesystem::path template_file;  // on this machine; empty: the shipped one of its kind
  int world_size = 1;                   // ranks of a job; with Slurm nodes * tasks_per_node
  std::vector<std::string>
      trainer_command;  // empty: the built-in trainer; else argv, "--job <job.json>" is appended
  std::string trainer_program;  // built-in trainer at the facility; empty: beside this xffl, and
                                // at a facility behind SSH or in an image xffl-train in the PATH
  std::vector<std::string> modules;      // environment modules loaded before `environment`
  std::vector<std::string> environment;  // shell lines run before the trainer; single lines
  std::vector<std::string> train_data;   // token shards at the facility
  std::vector<job::ValidationSet> validation;
  std::chrono::milliseconds poll_interval{0};  // 0: the policy's
  job::TrainingSpec training;  // defaults, then the facility's own; steps = steps per round
  bool operator==(const Facility&) const = default;
};

struct Aggregation {
  WeightKind weights = WeightKind::kTokens;
  job::UpdateKind update = job::UpdateKind::kDelta;
  job::FloatType update_dtype = job::FloatType::kBfloat16;  // what travels back
  job::FloatType publish_dtype =
      job::FloatType::kBfloat16;  // the global model; the master stays float32
  bool operator==(const Aggregation&) const = default;
};

struct RoundPolicy {
  OnMissing on_missing = OnMissing::kWait;
  int quorum = 0;  // facilities that must take part; 0: all, with kSkip at least 1
  std::chrono::seconds deadline{0};  // from the first submission of a round; 0: none; with kWait
                                     // it ends nothing: people are told
  int max_attempts = 2;  // trainings tried per facility and round before it counts as missing
  std::chrono::milliseconds poll_interval{1000};
  int keep_rounds = 2;                             // rounds whose files stay at the facilities
  std::chrono::seconds max_outage{7 * 24 * 3600};  // of one facility, before it counts as missing
  OnWalltime on_walltime = OnWalltime::kUse;
  int rerun_budget = 10;  // jobs repeated per facility and round for failed nodes, pre-emption or
                          // walltime, which are no attempts
  bool evaluate_last = true;  // after the last round one more job at each facility with validation
                              // sets: what the last global model is worth
  double max_change = 10;     // L2 norm of an update's change over that of its base; 0: no limit
  bool operator==(const RoundPolicy&) const = default;
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
  std::vector<Facility> facilities;  // sorted by name, at least one

  const Facility& facility(const FacilityName& name) const;  // throws kNotFound
  /// Between two looks at the facility's jobs.
  std::chrono::milliseconds poll_interval(const Facility& facility) const;
  bool operator==(const Experiment&) const = default;
};

}  // namespace xffl::config
