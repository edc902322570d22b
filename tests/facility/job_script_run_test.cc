// The Slurm script run by a shell, with stand-ins for srun, scontrol, modules and apptainer: what
// it does before and after the trainer. tests/submit/slurm_testbed_test.cc runs it on a real Slurm.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include <thread>

#include "slurm_script.h"
#include "support/await.h"
#include "xffl/base/sha256.h"
#include "xffl/job/job_times.h"

namespace xffl::facility {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

TEST_F(SlurmScript, ClaimsSetsTheRendezvousAndRunsTheTrainer) {
  facility_.environment = {"export TAG='it'\\''s'"};
  facility_.modules = {"cuda/12.2", "nccl"};
  const ProcessResult result = run("41");
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(text("claim/owner"),
              testing::MatchesRegex("41 " + std::string(32, 'a') + " [0-9a-f]{16} 0\n"));
  EXPECT_EQ(text("ran.txt"), "node7:15656 it's cuda/12.2,nccl, args --job " +
                                 (folder() / "job.json").string() + "\n");
}

TEST_F(SlurmScript, AnotherJobOfTheAttemptLeavesAtOnce) {
  EXPECT_EQ(run("41").exit_code, 0);
  const ProcessResult duplicate = run("42");
  EXPECT_EQ(duplicate.exit_code, 0);
  EXPECT_THAT(duplicate.out, HasSubstr("already claimed by job 41"));
  EXPECT_EQ(std::ranges::count(text("ran.txt"), '\n'), 1);
}

TEST_F(SlurmScript, ARestartedJobTrainsAgainUntilItHasReported) {
  EXPECT_EQ(run("41").exit_code, 0);
  write_file_atomic(folder() / "out/half", "x");
  EXPECT_THAT(run("41", "1").out, HasSubstr("starts again (restart 1)"));
  EXPECT_EQ(text("out/half"), "");
  EXPECT_EQ(std::ranges::count(text("ran.txt"), '\n'), 2);
  write_file_atomic(folder() / "out/report.json", "{}");
  EXPECT_THAT(run("41", "2").out, HasSubstr("has already reported"));
  EXPECT_EQ(text("out/report.json"), "{}");
  EXPECT_EQ(std::ranges::count(text("ran.txt"), '\n'), 2);
}

// A shared file system shows the owner only after four looks of the restarted job.
TEST_F(SlurmScript, ARestartedJobWaitsForTheOwnerOfItsClaim) {
  make_dirs(folder() / "claim");
  program("bin/sleep",
          "echo x >>looks\n[ \"$(wc -l <looks)\" -ne 4 ] || echo '41 n feed 0' >claim/owner\n"
          "exec /bin/sleep 0.1\n");
  EXPECT_THAT(run("41", "1").out, HasSubstr("starts again (restart 1)"));
  EXPECT_NE(text("ran.txt"), "");
}

// A controller that lost its state gives the id of a job that still runs to another one; or it runs
// a job again after the loss of its node. Neither counts as a restart.
TEST_F(SlurmScript, AReusedJobIdTrainsOnce) {
  program("trainer", "echo x >>ran.txt\nwhile [ ! -e finish ]; do sleep 0.05; done\n");
  const pid_t first = start_detached(spec("41", ""), dir_ / "output");
  for (int i = 0; i < 400 && text("ran.txt").empty(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(25));
  EXPECT_THAT(run("41").out, HasSubstr("another job with the id 41 trains here"));
  EXPECT_EQ(text("ran.txt"), "x\n");
  ::kill(-first, SIGKILL);
  write_file_atomic(folder() / "finish", "");
  EXPECT_THAT(run("41").out, HasSubstr("starts again"));
  EXPECT_EQ(text("ran.txt"), "x\nx\n");
}

// The heartbeat of the restart counts, not that of the first start, which has ended.
TEST_F(SlurmScript, AReusedIdOfARestartedJobTrainsOnce) {
  program("trainer",
          "echo x >>ran.txt\n"
          "[ \"$SLURM_RESTART_COUNT\" != 1 ] || until [ -e finish ]; do sleep 0.05; done\n");
  EXPECT_EQ(run("41").exit_code, 0);
  const pid_t restarted = start_detached(spec("41", "1"), dir_ / "output");
  EXPECT_TRUE(test::await([&] { return text("ran.txt") == "x\nx\n"; }));
  EXPECT_THAT(run("41").out, HasSubstr("another job with the id 41 trains here"));
  EXPECT_EQ(text("ran.txt"), "x\nx\n");
  write_file_atomic(folder() / "finish", "");
  EXPECT_EQ(wait_for_exit(restarted), 0);
}

// A loaded node or a slow file system may show two heartbeats as one.
TEST_F(SlurmScript, AHeartbeatMayBeLateTwice) {
  make_dirs(folder() / "claim");
  write_file_atomic(folder() / "claim/owner", "41 " + std::string(32, 'a') + " feed 0\n");
  write_file_atomic(folder() / "claim/beat-feed", "0\n");
  write_file_atomic(folder() / "out/half", "x");
  std::jthread other([beat = folder() / "claim/beat-feed"](std::stop_token stop) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2300));
    for (int i = 1; !stop.stop_requested(); ++i) {
      write_file_atomic(beat, std::to_string(i) + "\n");
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
    }
  });
  EXPECT_THAT(run("41").out, HasSubstr("another job with the id 41 trains here"));
  EXPECT_EQ(text("out/half"), "x");
  EXPECT_EQ(text("ran.txt"), "");
}

TEST_F(SlurmScript, EveryStartLeavesItsTimes) {
  program("trainer", "exit 3\n");
  facility_.environment = {"set -eCu"};
  EXPECT_EQ(run("41").exit_code, 3);
  EXPECT_EQ(run("41", "1").exit_code, 3);
  const auto starts = job::parse_job_times(text("claim/times"));
  ASSERT_EQ(starts.size(), 2u) << text("claim/times");
  for (int i = 0; i < 2; ++i) {
    const job::JobStart& start = starts[static_cast<size_t>(i)];
    EXPECT_EQ(start.job, "41");
    EXPECT_EQ(start.restart, i);
    EXPECT_EQ(start.nodes, 2);
    EXPECT_EQ(start.status, 3);
    EXPECT_NE(text("claim/beat-" + start.beat), "");
    EXPECT_LE(std::abs(start.start - ::time(nullptr)), 60);
    EXPECT_LE(start.start, start.train.value());
    EXPECT_LE(*start.train, start.trained.value());
    EXPECT_LE(*start.trained, start.end.value());
    EXPECT_FALSE(start.offered);
  }
}

TEST_F(SlurmScript, AKilledStartLeavesItsLastHeartbeat) {
  program("trainer", "touch trains\nwhile [ ! -e finish ]; do sleep 0.05; done\n");
  const pid_t job = start_detached(spec("41", ""), dir_ / "output");
  ASSERT_TRUE(test::await([&] { return fs::exists(folder() / "trains"); }));
  ::kill(-job, SIGKILL);
  ::waitpid(job, nullptr, 0);
  write_file_atomic(folder() / "finish", "");
  const auto starts = job::parse_job_times(text("claim/times"));
  ASSERT_EQ(starts.size(), 1u);
  EXPECT_TRUE(starts[0].train);
  EXPECT_FALSE(starts[0].end);
  EXPECT_GE(std::stoll(text("claim/beat-" + starts[0].beat)), starts[0].start);
}

TEST_F(SlurmScript, AJobTrainsWithoutAPlaceForItsTimes) {
  facility_.environment = {"rm -f claim/times; mkdir claim/times"};
  const ProcessResult result = run("41");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
  EXPECT_NE(text("ran.txt"), "");
}

TEST_F(SlurmScript, NoJobPassesAFence) {
  make_dirs(folder() / "claim/fenced");
  EXPECT_THAT(run("41").out, HasSubstr("abandoned this attempt"));
  EXPECT_EQ(text("ran.txt"), "");
  EXPECT_EQ(text("claim/owner"), "");
}

TEST_F(SlurmScript, AMissingModuleFailsTheJobAndIsNamed) {
  facility_.modules = {"absent"};
  const ProcessResult result = run("41");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("cannot load the module absent"));
  EXPECT_EQ(text("ran.txt"), "");
}

TEST_F(SlurmScript, ARankSeesItsOwnGpuOrAll) {
  program("trainer", "echo \"$SLURM_LOCALID:$CUDA_VISIBLE_DEVICES\" >>ran.txt\n");
  program("bin/srun",
          "echo \"$*\" >srun.txt\nwhile [ \"${1#--}\" != \"$1\" ]; do shift; done\n"
          "for i in 0 1 2 3 4; do SLURM_LOCALID=$i \"$@\"; done\n");
  slurm().visible_gpus = submit::VisibleGpus::kOne;
  facility_.environment = {"export CUDA_VISIBLE_DEVICES=4,5,6,7"};
  EXPECT_EQ(run("41").exit_code, 0);
  EXPECT_EQ(text("ran.txt"), "0:4\n1:5\n2:6\n3:7\n4:7\n");
  EXPECT_THAT(text("srun.txt"), Not(HasSubstr("--gpu-bind")));
  facility_.environment = {"unset CUDA_VISIBLE_DEVICES"};
  EXPECT_EQ(run("41", "1").exit_code, 0);
  EXPECT_THAT(text("ran.txt"), HasSubstr("0:0\n1:1\n2:2\n"));
  slurm().visible_gpus = submit::VisibleGpus::kAll;
  EXPECT_EQ(run("41", "2").exit_code, 0);
  EXPECT_THAT(text("srun.txt"), HasSubstr(" --gpu-bind=none "));
}

// Without the first option, the other ranks wait for a failed one until the walltime.
TEST_F(SlurmScript, SrunEndsAllRanksWithOneAndPassesTheEnvironment) {
  program("bin/srun", "echo \"$*\" >srun.txt\n");
  EXPECT_EQ(run("41").exit_code, 0);
  EXPECT_THAT(text("srun.txt"), HasSubstr("--kill-on-bad-exit=1 "));
  EXPECT_THAT(text("srun.txt"), HasSubstr("--export=ALL "));
}

TEST_F(SlurmScript, ALoginShellsProfileDefinesModule) {
  write_file_atomic(dir_ / ".bash_profile",
                    "PATH=" + (dir_ / "bin").string() +  // Debian's /etc/profile sets another one
                        ":$PATH\nmodule() { LOADED=\"profile's $2\"; }\nexport LOADED\n");
  write_file_atomic(dir_ / ".profile", "exit 9\n");  // bash reads the first one only
  facility_.modules = {"cuda"};
  facility_.login_shell = true;
  ProcessSpec job = spec("41", "");
  job.env.erase("MODULESHOME");
  job.env["HOME"] = dir_.path().string();
  const ProcessResult result = run_process(job);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(text("ran.txt"), HasSubstr("profile's cuda"));
}

// For a trainer of one's own, which may not look.
TEST_F(SlurmScript, ADamagedModelIsNotTrainedOn) {
  const fs::path model = dir_ / "a model's \\ folder";
  make_dirs(model);
  write_file_atomic(model / "config.json", "{}");
  write_file_atomic(model / "model.safetensors", "weights");
  const auto list = [&] {
    std::string lines;
    for (const char* name : {"config.json", "model.safetensors"})
      lines += sha256_hex(name == std::string("config.json") ? "{}" : "weights") + "  " +
               (model / name).string() + "\n";
    return lines;
  };
  write_file_atomic(folder() / "model.sha256", list());
  EXPECT_EQ(run("41").exit_code, 0);
  EXPECT_EQ(std::ranges::count(text("ran.txt"), '\n'), 1);
  write_file_atomic(model / "model.safetensors", "weighty");
  const ProcessResult result = run("41", "1");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("the input model is damaged"));
  EXPECT_THAT(text("out/model.failure"), HasSubstr("model.safetensors: FAILED"));
  EXPECT_EQ(std::ranges::count(text("ran.txt"), '\n'), 1);
  write_file_atomic(model / "model.safetensors", "weights");
  EXPECT_EQ(run("41", "2").exit_code, 0);
  EXPECT_EQ(text("out/model.failure"), "") << "a later start has another say";
  fs::remove(model / "config.json");
  EXPECT_EQ(run("41", "3").exit_code, 1);
  EXPECT_THAT(text("out/model.failure"), HasSubstr("config.json: FAILED"));
  EXPECT_EQ(std::ranges::count(text("ran.txt"), '\n'), 2);
}

TEST_F(SlurmScript, ADamagedModelIsNotTrainedOnWithoutXargs) {
  facility_.environment = {"command() { [ \"$2\" != xargs ] && builtin command \"$@\"; }",
                           "xargs() { exit 0; }"};
  write_file_atomic(dir_ / "weights", "weights");
  write_file_atomic(folder() / "model.sha256",
                    sha256_hex("weights") + "  " + (dir_ / "weights").string() + "\n");
  EXPECT_EQ(run("41").exit_code, 0);
  write_file_atomic(dir_ / "weights", "weighty");
  EXPECT_EQ(run("41", "1").exit_code, 1);
  EXPECT_THAT(text("out/model.failure"), HasSubstr("weights: FAILED"));
}

// A module's openssl may be wrong: only its success is final.
TEST_F(SlurmScript, AFailureOfOpensslAloneRejectsNoModel) {
  const fs::path model = dir_ / "model.safetensors";
  write_file_atomic(model, "weights");
  const std::string sha256 = sha256_hex("weights");
  write_file_atomic(folder() / "model.sha256", sha256 + "  " + model.string() + "\n");
  for (const std::string answer : {"nonsense", "false", "echo 00 *-"}) {
    program("bin/openssl", answer + "\n");
    EXPECT_EQ(run("41", "0").exit_code, 0) << answer;
    EXPECT_EQ(text("out/model.failure"), "");
    fs::remove_all(folder() / "claim");
  }
  EXPECT_EQ(std::ranges::count(text("ran.txt"), '\n'), 3);
  program("bin/openssl",
          "echo asked >>" + (dir_ / "asked").string() + "\necho " + sha256 + " \\*\"$4\"\n");
  program("bin/sha256sum", "echo not asked >&2; exit 1\n");
  EXPECT_EQ(run("41").exit_code, 0);
  EXPECT_EQ(read_file(dir_ / "asked", 100), "asked\n");
  EXPECT_EQ(std::ranges::count(text("ran.txt"), '\n'), 4);
}

// The coordinator looks for FAILED: without it, a damaged model would count as a failed job.
TEST_F(SlurmScript, ADamagedModelIsNamedInEnglish) {
  const fs::path model = dir_ / "model.safetensors";
  write_file_atomic(model, "weights");
  write_file_atomic(folder() / "model.sha256",
                    sha256_hex("weighty") + "  " + model.string() + "\n");
  facility_.environment = {"export LC_ALL=de_DE.UTF-8"};
  program("bin/openssl", "exit 1\n");
  program("bin/sha256sum",
          "[ \"$LC_ALL\" = C ] && word=FAILED || word=FEHLSCHLAG\necho \"model.safetensors: "
          "$word\"\nexit 1\n");
  EXPECT_EQ(run("41").exit_code, 1);
  EXPECT_THAT(text("out/model.failure"), HasSubstr("model.safetensors: FAILED"));
}

TEST_F(SlurmScript, AModelThatTheTrainerChecksIsNotReadTwice) {
  write_file_atomic(folder() / "model.sha256", "");
  EXPECT_EQ(run("41").exit_code, 0);
  EXPECT_NE(text("ran.txt"), "");
}

TEST_F(SlurmScript, TheJobsExitCodeIsTheTrainers) {
  program("trainer", "exit 7\n");
  EXPECT_EQ(run("41").exit_code, 7);
}

TEST_F(SlurmScript, AnImageGetsTheFoldersAndTheTrainer) {
  facility_.image = {.file = "x.sif", .binds = {"/opt:/opt:ro"}, .gpu = config::ImageGpu::kNv};
  EXPECT_EQ(run("41").exit_code, 0);
  EXPECT_THAT(text("image.txt"), HasSubstr("apptainer exec --nv --bind " + dir_.path().string() +
                                           " --bind /opt:/opt:ro --pwd " + folder().string() +
                                           " x.sif " + (dir_ / "trainer").string() + " --job"));
  EXPECT_NE(text("ran.txt"), "");
}

// The loader takes each library from where xffl.yaml says. The rank's own child proves it: the
// script's other commands see none of the variables.
TEST_F(SlurmScript, TheTrainerAloneGetsTheSitesLibraries) {
  const auto library = [&](const std::string& name, const std::string& value) {
    make_dirs((dir_ / name).parent_path());
    const ProcessResult built = run_process(
        {.argv = {"gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", (dir_ / name).string()},
         .stdin_text = "const char* " + value + "(void) { return \"" + value + "\"; }\n"});
    ASSERT_EQ(built.exit_code, 0) << built.err;
  };
  library("compat/libxffl_cuda.so.1", "newer");
  library("fabric/libxffl_cxi.so.1", "fabric");
  program("trainer",
          "echo \"$LD_LIBRARY_PATH|$LD_PRELOAD|$NCCL_NET_PLUGIN|$TAG\" >>ran.txt\n"
          "cat /proc/self/maps >>maps.txt\n");
  program("bin/scontrol", "echo \"$LD_LIBRARY_PATH|$LD_PRELOAD\" >>scontrol.txt\necho node7\n");
  facility_.cuda_compat = (dir_ / "compat").string();
  facility_.library_path = {(dir_ / "fabric/libxffl_cxi.so.1").string(), "/opt/fabric/lib"};
  facility_.nccl_plugin = "/opt/ofi/libnccl-net.so";
  facility_.environment = {"export LD_LIBRARY_PATH=/module/lib"};
  EXPECT_EQ(run("41").exit_code, 0);
  const std::string fabric = (dir_ / "fabric/libxffl_cxi.so.1").string();
  EXPECT_EQ(text("ran.txt"), (dir_ / "compat").string() + ":/opt/fabric/lib:/module/lib|" + fabric +
                                 "|/opt/ofi/libnccl-net.so|\n");
  EXPECT_THAT(text("maps.txt"), HasSubstr(fabric)) << "loaded by its path alone";
  EXPECT_EQ(text("scontrol.txt"), "/module/lib|\n");
}

TEST_F(SlurmScript, TheTimeLimitWarningReachesTheTrainer) {
  program("trainer",
          "trap 'echo warned >>ran.txt; exit 0' USR1\ntouch ready\n"
          "for i in $(seq 600); do sleep 0.05; done\n");
  const pid_t job = start_detached(spec("41", ""), dir_ / "output");
  for (int i = 0; i < 400 && !fs::exists(folder() / "ready"); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(25));
  ASSERT_TRUE(fs::exists(folder() / "ready"));
  ::kill(job, SIGUSR1);
  for (int i = 0; i < 400 && process_start_ticks(job) && text("ran.txt").empty(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(25));
  EXPECT_EQ(text("ran.txt"), "warned\n");
  ::kill(-job, SIGKILL);
}

// Slurm ends a job with its script, before the trainer has saved its work.
TEST_F(SlurmScript, AWarnedJobEndsWithItsTrainer) {
  program("trainer",
          "trap 'sleep 1; echo saved >>ran.txt; exit 3' USR1\ntouch ready\n"
          "for i in $(seq 1200); do sleep 0.05; done\n");
  const pid_t job = start_detached(spec("41", ""), dir_ / "output");
  EXPECT_TRUE(test::await([&] { return fs::exists(folder() / "ready"); }));
  ::kill(job, SIGUSR1);
  EXPECT_EQ(wait_for_exit(job), 3);
  EXPECT_EQ(text("ran.txt"), "saved\n");
}

TEST_F(SlurmScript, FailsOutsideSlurm) {
  ProcessSpec without = spec("41", "");
  without.env.erase("SLURM_JOB_ID");
  const ProcessResult result = run_process(without);
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr("this script is for sbatch"));
  EXPECT_FALSE(fs::exists(folder() / "claim"));
}

}  // namespace
}  // namespace xffl::facility
