// The options of a tokenizing job; tests/e2e/prepare_test.cc runs whole jobs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/temp_dir.h"
#include "support/thrown.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/config/load.h"
#include "xffl/prepare/prepare.h"
#include "xffl/submit/slurm.h"

namespace xffl::prepare {
namespace {

TEST(PrepareJob, HasTheOptionsOfTheFacilityAndThePathsOfItsComputeNodes) {
  test::TempDir dir;
  make_dirs(dir / "model");
  write_file_atomic(dir / "model/tokenizer.json", "{}");
  const config::Experiment experiment = config::parse_experiment(
      R"(project: p
model: model
training: {steps_per_round: 1}
facilities:
  alba:
    access: ssh
    ssh: {hosts: login, user: me}
    scheduler: slurm
    workdir: /scratch/me
    compute_mounts: ['/scratch:/compute']
    data: {text: [/scratch/it/*.jsonl], text_field: answer, prompt_field: question,
           mask_prompt: true, pack: false, validation_fraction: 0.2, sequence_length: 64}
)",
      "xffl.yaml", dir.path());
  const PrepareJob job = prepare_job(experiment, experiment.facilities.front());
  EXPECT_EQ(job.files, std::vector<std::string>{"/compute/it/*.jsonl"});
  EXPECT_EQ(job.text_field, "answer");
  EXPECT_EQ(job.prompt_field, "question");
  EXPECT_TRUE(job.mask_prompt);
  EXPECT_FALSE(job.pack);
  EXPECT_EQ(job.validation_fraction, 0.2);
  EXPECT_EQ(job.sequence_length, 64);
}

TEST(PrepareJob, ATextWithoutALengthHasSequencesOf2048Tokens) {
  test::TempDir dir;
  make_dirs(dir / "model");
  write_file_atomic(dir / "model/tokenizer.json", "{}");
  const config::Experiment experiment = config::parse_experiment(
      "project: p\nmodel: model\ntraining: {steps_per_round: 1}\n"
      "facilities: {alba: {data: {text: [/data/*.txt]}}}\n",
      "xffl.yaml", dir.path());
  EXPECT_EQ(prepare_job(experiment, experiment.facilities.front()).sequence_length, 2048);
}

TEST(PrepareJob, ASequenceIsAtMostAsLongAsTheModelAllows) {
  test::TempDir dir;
  make_dirs(dir / "model");
  write_file_atomic(dir / "model/tokenizer.json", "{}");
  write_file_atomic(dir / "model/config.json",
                    R"({"model_type": "llama", "max_position_embeddings": 128})");
  const auto length = [&](const std::string& facility, const std::string& data) {
    const config::Experiment experiment = config::parse_experiment(
        "project: p\nmodel: model\ntraining: {steps_per_round: 1}\nfacilities: {alba: {" +
            facility + "data: {text: [/data/*.txt]" + data + "}}}\n",
        "xffl.yaml", dir.path());
    return prepare_job(experiment, experiment.facilities.front()).sequence_length;
  };
  EXPECT_EQ(length("", ""), 128);
  EXPECT_EQ(length("", ", sequence_length: 128"), 128);
  const Error error = test::error_of([&] { length("", ", sequence_length: 129"); });
  EXPECT_EQ(error.kind(), ErrorKind::kConfig);
  EXPECT_THAT(error.what(),
              testing::AllOf(testing::HasSubstr("facilities.alba.data.sequence_length is 129"),
                             testing::HasSubstr("set the key to at most 128")));
  EXPECT_EQ(length("trainer: {command: [mine]}, ", ""), 2048) << "xffl does not know its limit";
}

TEST(PrepareJob, IsOneTaskOnOneNode) {
  config::Facility facility;
  facility.scheduler = submit::QueueSettings("slurm");
  auto& slurm = facility.scheduler.as<submit::SlurmSettings>();
  slurm.nodes = 4;
  slurm.tasks_per_node = 2;
  const submit::JobShape shape = job_shape(facility, {}).shape();
  EXPECT_EQ(shape.nodes, 1);
  EXPECT_EQ(shape.tasks_per_node, 1);
}

// This machine's path has no meaning at another one, nor in an image.
TEST(PrepareJob, FindsItsProgramInThePathOfAnotherMachineAndOfAnImage) {
  const facility::Programs programs{"/opt/xffl/bin/xffl", "/opt/xffl/bin/xffl-train"};
  config::Facility here, there, image;
  there.access = config::AccessKind::kSsh;
  image.image.file = "/images/x.sif";
  EXPECT_EQ(tokenize_program(here, programs), "/opt/xffl/bin/xffl-tokenize");
  EXPECT_EQ(tokenize_program(there, programs), "xffl-tokenize");
  EXPECT_EQ(tokenize_program(image, programs), "xffl-tokenize");
}

// An image binds the parents of the training data.
TEST(PrepareJob, NamesTheFoldersOfTheText) {
  config::Facility facility;
  facility.workdir = RemotePath("/scratch/me");
  facility.compute_mounts = {"/scratch:/compute"};
  facility.trainer_program = "/scratch/me/bin/xffl-train";
  facility.validation = {{.name = "held out", .path = "/elsewhere/validation.xtk"}};
  facility.world_size = 8;
  facility.text.files = {"/scratch/it/*.jsonl", "/scratch/de/20?/part-*.jsonl",
                         "/scratch/fr/all.jsonl", "/*.jsonl"};
  const config::Facility shape = job_shape(facility, {});
  EXPECT_EQ(shape.train_data, (std::vector<std::string>{"/scratch/it/text", "/scratch/de/text",
                                                        "/scratch/fr/text", "/text"}));
  EXPECT_TRUE(shape.validation.empty());
  EXPECT_EQ(shape.world_size, 1);
  EXPECT_EQ(shape.trainer_command,
            (std::vector<std::string>{"/compute/me/bin/xffl-tokenize", "prepare"}));
}

}  // namespace
}  // namespace xffl::prepare
