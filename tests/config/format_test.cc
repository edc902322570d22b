#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "keys.h"
#include "xffl/config/load.h"

namespace xffl::config {
namespace {

Experiment parse(const std::string& yaml, const char* folder = "/p") {
  return parse_experiment(yaml, "xffl.yaml", folder);
}

constexpr const char* kEverything = R"yaml(
project: p
model: "models/a b: #c"
rounds: 7
training: {steps_per_round: 3, seed: 9223372036854775807, beta1: 0.1, epsilon: 1e-300, precision: bf16}
aggregation: {weights: samples, update: weights, update_dtype: fp32, publish_dtype: fp16, max_share: 0.6}
policy: {on_missing: fail, quorum: 2, deadline: 36h, poll_interval: 1500ms}
facilities:
  z:
    template: templates/z.sh
    trainer: {command: [python3, "-c", "print('x: y')", ""]}
    environment: {A: "it's", B: "$(id)"}
    training: {steps_per_round: 5, schedule: {kind: linear}, learning_rate: 0.1}
    data: {train: [a, "b c"], validation: {it.v2: x, "0": y, "no": z}}
  a: {world_size: 4, trainer: {program: /x}, environment: ["a  b"], data: {train: t}}
  p:
    access: ssh
    ssh: {hosts: login.example.org, user: me}
    transfer: {pack: never}
    scheduler: slurm
    workdir: /scratch/me
    trainer: bundle
    data: {text: ["/t/*.jsonl"], template: "a: {text}", pack: false, validation: {it: /v}}
  s:
    access: ssh
    ssh: {hosts: [login1.example.org, "[fe80::1]:2222"], user: me, keys: keys/id, jump: gate:22, agent: false}
    transfer: {hosts: data.example.org, shell: false}
    scheduler: slurm
    slurm:
      {account: acc_1, partition: "a,b", constraint: "[x|y]", nodes: 2, gpus_per_node: 4, gpu_option: gres, gpu_type: a100, visible_gpus: one,
       memory_per_node: 480GB, time: 12h, warning: 10m, extra: [--mail-type=END], srun: --cpu-bind=cores}
    image: {file: /images/x.sif, binds: [/scratch, "/a:/b:ro"], options: [--cleanenv], gpu: nv}
    login_shell: true
    deploy: {unpack: job}
    compute_mounts: [/images, "/scratch:/compute"]
    modules: [cuda/12.2]
    workdir: /scratch/me
    data: {train: /scratch/me/t}
)yaml";

TEST(FormatExperiment, IsReadBackToAnEqualExperiment) {
  const Experiment experiment = parse(kEverything);
  const std::string text = format_experiment(experiment);
  EXPECT_EQ(parse(text), experiment) << text;
  EXPECT_EQ(format_experiment(parse(text)), text);
}

TEST(FormatExperiment, EquivalentFilesGiveTheSameText) {
  const std::string one = R"(
project: p
model: /m
training: {steps_per_round: 4}
facilities:
  a: {data: {train: /t}}
  b: {data: {train: /t}}
)";
  const std::string other = R"(# a comment
facilities:
  b: {data: {train: [/t]}, training: {steps_per_round: 4}, workdir: /p/work/b}
  a: {data: {train: "/t"}, world_size: 1, training: {learning_rate: 1e-5}}
model: "/x/../m"
rounds: 1
training: {steps_per_round: 4}
project: p
)";
  EXPECT_EQ(format_experiment(parse(one)), format_experiment(parse(other)));
}

TEST(FormatExperiment, NamesEveryKey) {
  const std::string text = format_experiment(parse(kEverything));
  for (const char* key : {"rounds: 7", "weights: samples", "keep_rounds: 2", "deadline: 36h",
                          "poll_interval: 1500ms", "max_grad_norm: 1", "min_ratio: 0",
                          "validation_samples: 0", "access: local", "scheduler: process"})
    EXPECT_THAT(text, testing::HasSubstr(key));
}

// Appends the keys that may change within a run; a section's mark stands for its keys.
void collect_operational(const FieldTable& table, const std::string& path,
                         std::vector<std::string>& names) {
  for (const Field& key : table.yaml) {
    const std::string name = path + std::string(key.name);
    if (key.operational)
      names.push_back(name);
    else if (key.table != nullptr && key.table != &job::training_fields())
      collect_operational(*key.table, name + ".", names);
  }
}

// tests/job/job_spec_test.cc has the keys of `training`.
TEST(FormatTrainingIdentity, LeavesOutOnlyKeysWithoutAnEffectOnTheModel) {
  std::vector<std::string> names;
  collect_operational(experiment_keys(), "", names);
  EXPECT_THAT(
      names,
      testing::UnorderedElementsAre(
          "policy", "observe", "hooks", "facilities.ssh", "facilities.transfer", "facilities.slurm",
          "facilities.gridengine", "facilities.pbs", "facilities.flux", "facilities.compute_mounts",
          "facilities.purge_after", "facilities.budget", "facilities.template", "facilities.image",
          "facilities.deploy", "facilities.nccl_plugin", "facilities.library_path",
          "facilities.cuda_compat", "facilities.login_shell", "facilities.modules",
          "facilities.environment", "facilities.poll_interval", "facilities.data.sequence_length"));
}

// `xffl prepare` would make other shards for the run.
TEST(FormatTrainingIdentity, HasTheLengthOfTheSequencesOfText) {
  const auto with = [](const std::string& data) {
    return format_training_identity(
        parse("project: p\nmodel: m\nrounds: 1\ntraining: {steps_per_round: 1, batch_size: 1, "
              "micro_batch_size: 1}\nfacilities:\n  a: {workdir: /w, data: {" +
              data + "}}\n"));
  };
  EXPECT_NE(with("text: /t, sequence_length: 64"), with("text: /t, sequence_length: 32"));
  EXPECT_EQ(with("train: /t, sequence_length: 64"), with("train: /t, sequence_length: 32"));
}

// An early stop compares losses: of other sequences it would leave another model.
TEST(FormatTrainingIdentity, HasTheSamplesOfAValidationThatMayEndTheTraining) {
  const auto with = [](const std::string& training) {
    return format_training_identity(parse(
        "project: p\nmodel: m\nrounds: 1\ntraining: {steps_per_round: 1, batch_size: 1, "
        "micro_batch_size: 1, validation_interval: 1, " +
        training + "}\nfacilities:\n  a: {workdir: /w, data: {train: /t, validation: {v: /v}}}\n"));
  };
  EXPECT_EQ(with("validation_samples: 8"), with("validation_samples: 0"));
  EXPECT_NE(with("validation_samples: 8, early_stop_patience: 1"),
            with("validation_samples: 0, early_stop_patience: 1"));
}

TEST(FormatTrainingIdentity, ChangesOnlyWithTrainingKeys) {
  const std::string identity = format_training_identity(parse(kEverything));
  const auto with = [](const std::string& from, const std::string& to) {
    std::string yaml = kEverything;
    const size_t at = yaml.find(from);
    if (at == std::string::npos) throw std::logic_error("there is no " + from);
    return format_training_identity(parse(yaml.replace(at, from.size(), to)));
  };
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"user: me", "user: you"},
           {"login1.example.org", "login2.example.org"},
           {"time: 12h", "time: 6h"},
           {"account: acc_1", "account: other"},
           {"cuda/12.2", "cuda/12.4"},
           {"/images/x.sif", "/images/y.sif"},
           {"templates/z.sh", "templates/y.sh"},
           {"environment: [\"a  b\"]", "environment: []"},
           {"deadline: 36h", "deadline: 48h"},
           {"poll_interval: 1500ms", "max_outage: 1d"}})
    EXPECT_EQ(with(from, to), identity) << to;
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"models/a b", "models/c"},
           {"steps_per_round: 3", "steps_per_round: 4"},
           {"weights: samples", "weights: equal"},
           {"nodes: 2", "nodes: 1"},
           {"world_size: 4", "world_size: 2"},
           {"  z:", "  y:"},
           {"[a, \"b c\"]", "[a]"},
           {"it.v2: x", "it.v2: w"},
           {"workdir: /scratch/me", "workdir: /scratch/you"}})
    EXPECT_NE(with(from, to), identity) << to;
}

}  // namespace
}  // namespace xffl::config
