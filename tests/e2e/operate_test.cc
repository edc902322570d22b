// What people ask of a run while it goes on, and before.
#include <gtest/gtest.h>

#include <sstream>
#include <thread>

#include "e2e/project.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"

namespace xffl {
namespace {

using test::Project;

Json status_of(const Project& project) {
  const ProcessResult result = project.xffl({"status", "-p", project.path().string(), "--json"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return parse_json(result.out, "status");
}

TEST(Pause, HoldsAFacilityBackUntilItIsResumed) {
  Project project;
  project.set_hold();
  project.write_config();
  const std::string path = project.path().string();
  auto run = project.start_run();
  ASSERT_TRUE(project.await_events("submitted", 2));
  EXPECT_EQ(project.xffl({"pause", "-p", path, "brno", "--reason", "maintenance"}).exit_code, 0);
  EXPECT_EQ(status_of(project)["paused"], Json({{"brno", "maintenance"}}));
  project.release();
  // What ran goes on; the next round waits for brno.
  ASSERT_TRUE(project.await_events("update_accepted", 3));
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  EXPECT_EQ(project.count_events("published"), 1);
  for (const std::string& training : project.trainings()) EXPECT_NE(training, "brno 2 1");
  EXPECT_EQ(project.xffl({"resume", "-p", path}).exit_code, 0);
  EXPECT_EQ(run.finish(), 0);
  EXPECT_EQ(project.count_events("published"), 3);
}

TEST(Pause, IsRememberedWithoutACoordinator) {
  Project project;
  ASSERT_EQ(project.run({{"XFFL_FAILPOINT", "journal:after:4"}}).exit_code, 128 + 9);
  const std::string path = project.path().string();
  EXPECT_EQ(project.xffl({"pause", "-p", path, "alba"}).exit_code, 0);
  EXPECT_EQ(project.history().paused.size(), 1u);
  EXPECT_EQ(project.xffl({"resume", "-p", path, "alba"}).exit_code, 0);
  EXPECT_EQ(project.run().exit_code, 0);
}

TEST(Pause, RefusesAFacilityThatIsNone) {
  Project project;
  ASSERT_EQ(project.run({{"XFFL_FAILPOINT", "journal:after:4"}}).exit_code, 128 + 9);
  EXPECT_EQ(project.xffl({"pause", "-p", project.path().string(), "nemo"}).exit_code,
            exit_code(ErrorKind::kNotFound));
}

TEST(Continue, WithOtherOperationalKeys) {
  Project project;
  ASSERT_EQ(project.run({{"XFFL_FAILPOINT", "journal:after:8"}}).exit_code, 128 + 9);
  project.set_policy("{on_missing: wait, poll_interval: 30ms, max_attempts: 5}");
  project.write_config();
  EXPECT_EQ(project.run().exit_code, 0);
  EXPECT_EQ(project.count_events("config_changed"), 1);
  EXPECT_EQ(status_of(project)["state"], "completed");
}

TEST(Detach, GoesOnAndCanBeFollowed) {
  Project project;
  project.set_training_time(200);
  project.write_config();
  const std::string path = project.path().string();
  const ProcessResult detached = project.xffl({"run", "-p", path, "--detach"});
  ASSERT_EQ(detached.exit_code, 0) << detached.err;
  const ProcessResult followed = project.xffl({"attach", "-p", path});
  EXPECT_EQ(followed.exit_code, 0) << followed.err;
  EXPECT_NE(followed.out.find("completed, 3 of 3 rounds published"), std::string::npos)
      << followed.out;
}

TEST(Detach, OfARunThatIsNotTheNewest) {
  Project project;
  project.set_rounds(1);
  project.write_config();
  const std::string path = project.path().string();
  ASSERT_EQ(project.run({{"XFFL_FAILPOINT", "journal:after:8"}}).exit_code, 128 + 9);
  ASSERT_EQ(project.xffl({"run", "-p", path, "--new"}).exit_code, 0);
  project.set_hold();
  project.write_config();
  const ProcessResult detached = project.xffl({"run", "-p", path, "--run", "0001", "--detach"});
  EXPECT_EQ(detached.exit_code, 0) << detached.err;
  EXPECT_NE(detached.out.find("run 0001 goes on in process"), std::string::npos) << detached.out;
  project.release();
  EXPECT_EQ(project.xffl({"attach", "-p", path, "--run", "0001"}).exit_code, 0);
  EXPECT_TRUE(project.history("0001").completed);
}

// A mistyped number must not begin a training.
TEST(Run, ThatIsNamedMustExist) {
  Project project;
  const std::string path = project.path().string();
  for (const char* command : {"run", "status", "cancel", "attach"}) {
    const ProcessResult result = project.xffl({command, "-p", path, "--run", "0042"});
    EXPECT_EQ(result.exit_code, exit_code(ErrorKind::kNotFound)) << result.err;
    EXPECT_NE(result.err.find("there is no run 0042"), std::string::npos) << result.err;
  }
  EXPECT_FALSE(std::filesystem::exists(project.run_folder("0042")));
}

TEST(Detach, SaysWhyItCannot) {
  Project project;
  project.set_hold();
  project.write_config();
  auto run = project.start_run();
  ASSERT_TRUE(project.await_events("submitted", 2));
  const ProcessResult second = project.xffl({"run", "-p", project.path().string(), "--detach"});
  EXPECT_EQ(second.exit_code, exit_code(ErrorKind::kBusy));
  EXPECT_NE(second.err.find("not started: the journal"), std::string::npos) << second.err;
}

TEST(Detach, OfACompletedRunShowsIt) {
  Project project;
  project.set_rounds(1);
  project.write_config();
  ASSERT_EQ(project.run().exit_code, 0);
  const ProcessResult again = project.xffl({"run", "-p", project.path().string(), "--detach"});
  EXPECT_EQ(again.exit_code, 0) << again.err;
}

// `xffl run | tee log`, and tee ends.
TEST(Output, MayLoseItsReader) {
  Project project;
  const ProcessResult piped =
      run_process({.argv = {"sh", "-c", "\"$@\" 2>/dev/null | true", "sh",
                            XFFL_BINARY_DIR "/bin/xffl", "run", "-p", project.path().string()},
                   .timeout = std::chrono::seconds(120)});
  EXPECT_EQ(piped.exit_code, 0);
  EXPECT_TRUE(project.history().completed);
}

TEST(Output, ThatIsClosedGoesIntoNoFile) {
  Project project;
  project.set_rounds(1);
  project.write_config();
  const ProcessResult closed =
      run_process({.argv = {"sh", "-c", "exec \"$@\" <&- >&- 2>&-", "sh",
                            XFFL_BINARY_DIR "/bin/xffl", "run", "-p", project.path().string()},
                   .timeout = std::chrono::seconds(120)});
  EXPECT_EQ(closed.exit_code, 0);
  EXPECT_TRUE(project.history().completed);
  std::istringstream log(read_file(project.run_folder() / "coordinator.log", 1 << 20));
  for (std::string line; std::getline(log, line);) EXPECT_NO_THROW(parse_json(line, "log")) << line;
}

TEST(Output, ThatIsLostIsAnError) {
  Project project;
  const ProcessResult result =
      run_process({.argv = {"sh", "-c", "exec \"$@\" >/dev/full", "sh", XFFL_BINARY_DIR "/bin/xffl",
                            "config", "schema"},
                   .timeout = std::chrono::seconds(60)});
  EXPECT_EQ(result.exit_code, exit_code(ErrorKind::kIo)) << result.err;
}

// Keys and answers are in its memory.
TEST(Run, LeavesNoCoreFile) {
  Project project;
  project.set_hold();
  project.write_config();
  auto run = project.start_run();
  ASSERT_TRUE(project.await_events("submitted", 1));
  const std::string limits = read_file("/proc/" + std::to_string(run.pid()) + "/limits", 1 << 16);
  const size_t line = limits.find("Max core file size");
  ASSERT_NE(line, std::string::npos);
  std::istringstream soft(limits.substr(line + 18));
  std::string value;
  soft >> value;
  EXPECT_EQ(value, "0");
}

// Runs xffl where the project's folder is, as the table of mounts says, on NFS.
ProcessResult on_nfs(const Project& project, const std::vector<std::string>& args) {
  const std::filesystem::path mounts = project.path() / "mountinfo";
  write_file_atomic(mounts, "22 1 0:20 / / rw - ext4 /dev/sda1 rw\n30 22 0:30 / " +
                                project.path().string() + " rw - nfs4 nas:/home rw\n");
  std::vector<std::string> argv = {
      "unshare",
      "--mount",
      "--propagation",
      "private",
      "sh",
      "-c",
      "mount --bind \"$1\" /proc/$$/mountinfo || exit 77; shift; exec \"$@\"",
      "sh",
      mounts.string(),
      XFFL_BINARY_DIR "/bin/xffl"};
  argv.insert(argv.end(), args.begin(), args.end());
  return run_process({.argv = argv, .timeout = std::chrono::seconds(120)});
}

TEST(NetworkFileSystem, IsRefusedUnlessItIsAllowed) {
  Project project;
  const std::string path = project.path().string();
  const ProcessResult refused = on_nfs(project, {"run", "-p", path});
  if (refused.exit_code == 77 || refused.err.find("unshare") != std::string::npos)
    GTEST_SKIP() << "no mount namespaces here: " << refused.err;
  EXPECT_EQ(refused.exit_code, exit_code(ErrorKind::kUnsupported)) << refused.err;
  EXPECT_NE(refused.err.find("(nfs4)"), std::string::npos) << refused.err;
  EXPECT_FALSE(std::filesystem::exists(project.path() / "runs"));
  const ProcessResult allowed = on_nfs(project, {"run", "-p", path, "--allow-network-fs"});
  EXPECT_EQ(allowed.exit_code, 0) << allowed.err;
  EXPECT_NE(allowed.err.find("one machine only"), std::string::npos) << allowed.err;
  // No write-ahead log; and the run is the same run.
  EXPECT_EQ(read_file(project.run_folder() / "journal.db", 1 << 20).at(18), 1);
  EXPECT_TRUE(project.history().completed);
}

TEST(Doctor, FindsWhatIsMissing) {
  Project project;
  const std::string path = project.path().string();
  std::filesystem::remove_all(project.path() / "model");
  const ProcessResult result = project.xffl({"doctor", "-p", path});
  EXPECT_EQ(result.exit_code, exit_code(ErrorKind::kFailed));
  EXPECT_NE(result.out.find("FAILED"), std::string::npos) << result.out;
}

TEST(Plan, CountsAndSubmitsNothing) {
  Project project;
  const std::string path = project.path().string();
  const ProcessResult result = project.xffl({"plan", "-p", path, "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json plan = parse_json(result.out, "plan");
  ASSERT_EQ(plan.size(), 2u);
  EXPECT_EQ(plan[0]["facility"], "alba");
  EXPECT_EQ(plan[0]["push_bytes"], 2 * (16 * 8 + 12 * 8 + 8));
  EXPECT_TRUE(project.trainings().empty());
  EXPECT_FALSE(std::filesystem::exists(project.path() / "runs"));
}

}  // namespace
}  // namespace xffl
