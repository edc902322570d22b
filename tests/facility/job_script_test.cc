// The submitted scripts: golden files, and the parts that no configuration may change.
#include "xffl/facility/job_script.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "support/temp_dir.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/process.h"
#include "xffl/config/load.h"
#include "xffl/submit/slurm.h"

namespace xffl::facility {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* kProject = R"(project: demo
model: /m
training: {steps_per_round: 4, batch_size: 16}
facilities:
  alba:
    access: ssh
    ssh: {hosts: login.example.org, user: me}
    scheduler: slurm
    slurm:
      account: EUHPC_D01_001
      partition: boost_usr_prod
      nodes: 2
      gpus_per_node: 4
      gpu_option: gres
      cpus_per_task: 8
      memory_per_node: 480GiB
      time: 36h
      warning: 10m
      extra: [--mail-type=END]
      srun: [--cpu-bind=cores]
    workdir: /scratch/me/xffl
    modules: [profile/deeplrn, cuda/12.2]
    environment: {OMP_NUM_THREADS: 8, TAG: "it's"}
    data: {train: /scratch/me/it.tokens, validation: {it: /data/val/it.tokens}}
)";

config::Facility facility_of(const std::string& yaml) {
  return config::parse_experiment(yaml, "xffl.yaml", "/project").facilities.at(0);
}

std::string with(const std::string& from, const std::string& to) {
  std::string yaml = kProject;
  return yaml.replace(yaml.find(from), from.size(), to);
}

const RemotePath kFolder("/scratch/me/xffl/demo/0001-0123abcd/alba/r0002/a1");

std::string script_of(const config::Facility& facility,
                      const std::optional<RemotePath>& next_attempt = std::nullopt) {
  job::JobSpec spec;
  spec.key = {"demo", "0001", 2, "alba", 1, "0123456789abcdef0123456789abcdef"};
  return job_script(facility, spec, spec.key.name(), kFolder,
                    {"/opt/xffl/bin/xffl", "/opt/xffl/bin/xffl-train"}, next_attempt);
}

void expect_golden(const std::string& name, const std::string& text) {
  const std::filesystem::path file =
      std::filesystem::path(XFFL_SOURCE_DIR) / "tests/golden/scripts" / name;
  if (std::getenv("XFFL_ACCEPT") != nullptr) {
    make_dirs(file.parent_path());
    write_file_atomic(file, text, 0644);
  }
  EXPECT_EQ(text, read_file(file, 1 << 20)) << "XFFL_ACCEPT=1 rewrites " << file;
}

TEST(JobScript, ForSlurmMatchesTheGoldenFile) {
  expect_golden("slurm.sbatch", script_of(facility_of(kProject)));
}

// The key trainer.command chooses its own device.
TEST(JobScript, OnlyXfflsTrainerMustFindTheGpusOfTheJob) {
  EXPECT_THAT(script_of(facility_of(kProject)), HasSubstr("/job.json --device cuda &\n"));
  EXPECT_THAT(script_of(facility_of(with("gpus_per_node: 4", "gpus_per_node: 0"))),
              HasSubstr("/job.json &\n"));
  EXPECT_THAT(script_of(facility_of(with(
                  "workdir:", "trainer: {command: [xffl-train, --device, cpu]}\n    workdir:"))),
              HasSubstr(" xffl-train --device cpu --job " + kFolder.str() + "/job.json &\n"));
}

TEST(JobScript, InAnImageBindsTheJobsFolders) {
  const config::Facility facility = facility_of(with(
      "workdir:",
      "image: {file: /images/xffl.sif, gpu: nv, binds: \"/usr/share:/x:ro\", options: --cleanenv}\n"
      "    workdir:"));
  const std::string script = script_of(facility);
  expect_golden("slurm_image.sbatch", script);
  EXPECT_THAT(script, HasSubstr("apptainer exec --nv --bind /data/val --bind /scratch/me "
                                "--bind /scratch/me/xffl --bind /usr/share:/x:ro --pwd " +
                                kFolder.str() + " --cleanenv /images/xffl.sif xffl-train --job"));
}

TEST(JobScript, AnImageBindsFoldersByTheirPathsOnComputeNodes) {
  const std::string script = script_of(facility_of(
      with("workdir:",
           "image: {file: /scratch/me/xffl.sif}\n"
           "    compute_mounts: [\"/scratch/me:/compute\", \"/data:/nodes\"]\n    workdir:")));
  EXPECT_THAT(script, HasSubstr(" --bind /compute --bind /compute/xffl --bind /nodes/val --pwd "
                                "/compute/xffl/demo/0001-0123abcd/alba/r0002/a1 "
                                "/compute/xffl.sif xffl-train --job /compute/"));
}

// This machine's path has no meaning in an image.
TEST(JobScript, AnImageHasATrainerOfItsOwn) {
  const Programs programs{"/opt/xffl/bin/xffl", "/opt/xffl/bin/xffl-train"};
  config::Facility facility = facility_of(kProject);
  EXPECT_EQ(trainer_program(facility, programs), "xffl-train") << "of another machine";
  facility.access = config::AccessKind::kLocal;
  EXPECT_EQ(trainer_program(facility, programs), "/opt/xffl/bin/xffl-train");
  facility.image.file = "/images/xffl.sif";
  EXPECT_EQ(trainer_program(facility, programs), "xffl-train");
}

TEST(JobScript, AnImageSeesTheGpusOfAmd) {
  EXPECT_THAT(script_of(facility_of(
                  with("workdir:", "image: {file: /images/xffl.sif, gpu: rocm}\n    workdir:"))),
              HasSubstr("apptainer exec --rocm --bind "));
}

// A site with a login shell, one GPU for a rank, and other paths on compute nodes.
TEST(JobScript, OfASiteWithItsOwnWaysMatchesTheGoldenFile) {
  config::Facility facility =
      facility_of(with("workdir:",
                       "login_shell: true\n    compute_mounts: [\"/scratch/me:/compute\", /data]\n"
                       "    trainer: bundle\n    workdir:"));
  facility.scheduler.as<submit::SlurmSettings>().visible_gpus = submit::VisibleGpus::kOne;
  const std::string script = script_of(facility);
  expect_golden("slurm_site.sbatch", script);
  EXPECT_THAT(script, Not(HasSubstr("/scratch/me")));
  EXPECT_THAT(script, HasSubstr(" /compute/xffl/xffl.programs/current/bin/xffl-train --job "
                                "/compute/xffl/demo/0001-0123abcd/alba/r0002/a1/job.json"));
}

TEST(JobScript, TheFolderOfTheNextAttemptHasThePathOfComputeNodes) {
  const std::string script = script_of(
      facility_of(with("workdir:",
                       "compute_mounts: [\"/scratch/me:/compute\", /data]\n    trainer: bundle\n"
                       "    workdir:")),
      RemotePath("/scratch/me/xffl/demo/0001-0123abcd/alba/r0003/a1"));
  EXPECT_THAT(script, HasSubstr("\nnext_folder=/compute/xffl/demo/0001-0123abcd/alba/r0003/a1\n"));
  EXPECT_THAT(script, Not(HasSubstr("/scratch/me")));
}

TEST(JobScript, OnlyAJobWithANextAttemptKeepsItsAllocation) {
  const config::Facility facility =
      facility_of(with("time: 36h", "time: 36h\n      keep_allocation: 1h"));
  EXPECT_THAT(script_of(facility, RemotePath("/scratch/me/xffl/next")),
              HasSubstr("\nkeep_seconds=3600\n"));
  EXPECT_THAT(script_of(facility), HasSubstr("\nkeep_seconds=0\n")) << "of the last round";
}

TEST(JobScript, ASpecHasThePathsOfComputeNodes) {
  job::JobSpec spec;
  spec.key = {"demo", "0001", 2, "alba", 1, std::string(32, 'a')};
  spec.base_model_sha256 = spec.adapter_sha256 = std::string(64, '0');
  spec.training.keep_optimizer = true;
  spec.training.lora.rank = 2;
  spec.training.lora.target_modules = {"q_proj"};
  spec.base_model_path = "/scratch/me/xffl/model";
  spec.base_model_packed = {.path = "/scratch/me/packed",
                            .sha256 = std::string(64, '1'),
                            .reference_path = "/scratch/me/reference",
                            .reference_sha256 = std::string(64, '2'),
                            .failure_path = "/scratch/me/failure"};
  spec.train_paths = {"/data/it.tokens", "/scratch/me/it.tokens"};
  spec.validation = {{"de", "/data/val.tokens"}, {"it", "/scratch/me/val.tokens"}};
  spec.adapter_path = spec.optimizer_path = spec.update_path = spec.report_path =
      spec.metrics_path = spec.state_path = "/scratch/me/x";
  const std::string before = job::format_job_spec(spec);
  EXPECT_EQ(job::format_job_spec(for_compute_nodes(facility_of(kProject), spec)), before);
  const std::string after = job::format_job_spec(for_compute_nodes(
      facility_of(
          with("workdir:", "compute_mounts: [\"/scratch/me:/compute\", /data]\n    workdir:")),
      spec));
  EXPECT_THAT(after, Not(HasSubstr("/scratch/me")));
  EXPECT_THAT(after, HasSubstr("/compute/packed"));
}

TEST(JobScript, AnImageGetsTheSitesLibraries) {
  const std::string script = script_of(facility_of(
      with("workdir:",
           "image: {file: /images/xffl.sif}\n    nccl_plugin: /opt/ofi/libnccl-net.so\n"
           "    library_path: [/usr/lib64/libcxi.so.1]\n    cuda_compat: /opt/cuda/compat\n"
           "    workdir:")));
  for (const char* path : {"/opt/ofi/libnccl-net.so", "/usr/lib64/libcxi.so.1", "/opt/cuda/compat"})
    EXPECT_THAT(script, HasSubstr(std::string(" --bind ") + path + " "));
  EXPECT_THAT(script, HasSubstr(" sh /opt/cuda/compat /usr/lib64/libcxi.so.1 "
                                "/opt/ofi/libnccl-net.so xffl-train --job"));
}

TEST(JobScript, ForProcessesMatchesTheGoldenFile) {
  expect_golden("process.sh", script_of(facility_of("project: demo\nmodel: /m\n"
                                                    "training: {steps_per_round: 4}\n"
                                                    "facilities: {alba: {data: {train: t}}}\n")));
}

constexpr const char* kGridEngineProject = R"(project: demo
model: /m
training: {steps_per_round: 4, batch_size: 16}
facilities:
  alba:
    access: ssh
    ssh: {hosts: login.example.org, user: me}
    scheduler: gridengine
    gridengine:
      project: p1
      queue: gpu.q
      parallel_environment: mpi-4
      nodes: 2
      tasks_per_node: 4
      resources: [gpu=4]
      time: 36h
      warning: 10m
    workdir: /scratch/me/xffl
    modules: [cuda/12.2]
    environment: {OMP_NUM_THREADS: 8, TAG: "it's"}
    data: {train: /scratch/me/it.tokens}
)";

TEST(JobScript, ForGridEngineMatchesTheGoldenFile) {
  expect_golden("gridengine.sh", script_of(facility_of(kGridEngineProject)));
}

constexpr const char* kPbsProject = R"(project: demo
model: /m
training: {steps_per_round: 4, batch_size: 16}
facilities:
  alba:
    access: ssh
    ssh: {hosts: login.example.org, user: me}
    scheduler: pbs
    pbs:
      account: a1
      queue: prod
      nodes: 2
      tasks_per_node: 4
      cpus_per_node: 32
      gpus_per_node: 4
      chunk: [mem=480gb]
      resources: [filesystems=home:eagle]
      time: 6h
      warning: 10m
    workdir: /scratch/me/xffl
    data: {train: /scratch/me/it.tokens}
)";

TEST(JobScript, ForPbsMatchesTheGoldenFile) {
  expect_golden("pbs.sh", script_of(facility_of(kPbsProject)));
}

constexpr const char* kFluxProject = R"(project: demo
model: /m
training: {steps_per_round: 4, batch_size: 16}
facilities:
  alba:
    access: ssh
    ssh: {hosts: login.example.org, user: me}
    scheduler: flux
    flux:
      queue: pbatch
      bank: b1
      constraints: [mi300a]
      nodes: 2
      tasks_per_node: 4
      time: 6h
      warning: 10m
    workdir: /scratch/me/xffl
    data: {train: /scratch/me/it.tokens}
)";

TEST(JobScript, ForFluxMatchesTheGoldenFile) {
  expect_golden("flux.sh", script_of(facility_of(kFluxProject)));
}

TEST(JobScript, EveryShippedTemplateIsValidShell) {
  const test::TempDir dir;
  for (const char* project : {kProject, kGridEngineProject, kPbsProject, kFluxProject}) {
    write_file_atomic(dir / "job", script_of(facility_of(project)));
    const ProcessResult result = run_process({.argv = {"bash", "-n", (dir / "job").string()}});
    EXPECT_EQ(result.exit_code, 0) << result.err;
  }
}

TEST(JobScript, DirectivesPrecedeTheFirstCommandAndAreXfflsOnly) {
  const std::string script = script_of(facility_of(kProject));
  const size_t body = script.find("umask");
  EXPECT_THAT(script.substr(0, body), HasSubstr("#SBATCH --dependency=singleton\n"));
  EXPECT_EQ(script.find("#SBATCH", body), std::string::npos);
}

TEST(JobScript, AProjectsTemplateMustTakeTheOptions) {
  const test::TempDir dir;
  write_file_atomic(
      dir / "t",
      "#!/bin/bash\n{{sbatch options}}\ncd {{quote folder}} # {{nonce}}\n{{words launch}}\n");
  config::Facility facility = facility_of(kProject);
  facility.template_file = dir / "t";
  EXPECT_THAT(script_of(facility), HasSubstr("#SBATCH --nodes=2"));
  write_file_atomic(dir / "t", "#!/bin/bash\ncd {{quote folder}} # {{nonce}}\n{{words launch}}\n");
  try {
    script_of(facility);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    EXPECT_THAT(error.what(), HasSubstr("'options' is never used"));
  }
}

TEST(JobScript, AFolderThatAnImageCannotBindIsRejected) {
  config::Facility facility = facility_of(with("workdir:", "image: {file: /x.sif}\n    workdir:"));
  facility.train_data = {"/data/a:b/t.tokens"};
  EXPECT_THROW(script_of(facility), Error);
}

}  // namespace
}  // namespace xffl::facility
