// A validated experiment: what xffl.yaml says, with every default filled in and every path
// resolved.
//
// Everything downstream takes it as given: names follow their alphabets, numbers their ranges,
// facilities are sorted by name, paths on this machine are absolute.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "xffl/base/names.h"
#include "xffl/job/job_spec.h"

namespace xffl::config {

enum class AccessKind { kLocal };       // "local"; how files and commands reach the facility
enum class SchedulerKind { kProcess };  // "process"; who starts its jobs
enum class WeightKind { kTokens, kSamples, kEqual };
enum class OnMissing { kWait, kSkip, kFail };

struct Facility {
  FacilityName name;
  AccessKind access = AccessKind::kLocal;
  SchedulerKind scheduler = SchedulerKind::kProcess;
  RemotePath workdir;                   // xffl's files at the facility live under it
  std::filesystem::path template_file;  // on this machine; empty: the shipped one of its kind
  int world_size = 1;                   // ranks of a job
  std::vector<std::string>
      trainer_command;  // empty: the built-in trainer; else argv, "--job <job.json>" is appended
  std::string trainer_program;  // built-in trainer at the facility; empty: beside this xffl
  std::vector<std::string> environment;  // shell lines run before the trainer; single lines
  std::vector<std::string> train_data;   // token shards at the facility
  std::vector<job::ValidationSet> validation;
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
  std::chrono::seconds deadline{0};  // from the first submission of a round; 0: none
  int max_attempts = 2;  // trainings tried per facility and round before it counts as missing
  std::chrono::milliseconds poll_interval{1000};
  int keep_rounds = 2;  // rounds whose files stay at the facilities
  bool operator==(const RoundPolicy&) const = default;
};

struct Experiment {
  ProjectName project;
  std::filesystem::path project_folder;
  std::filesystem::path model;  // HF folder that round 1 starts from
  int rounds = 1;
  Aggregation aggregation;
  RoundPolicy policy;
  std::vector<Facility> facilities;  // sorted by name, at least one

  const Facility& facility(const FacilityName& name) const;  // throws kNotFound
  bool operator==(const Experiment&) const = default;
};

}  // namespace xffl::config
