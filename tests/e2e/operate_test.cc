// Commands for operators: pause, resume, continue, detach, status, and the program's output.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
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

TEST(Pause, SubmitsNothingAtAFacilityUntilResume) {
  Project project;
  const std::string path = project.path().string();
  auto run = project.start_held_run();
  EXPECT_EQ(project.xffl({"pause", "-p", path, "brno", "--reason", "maintenance"}).exit_code, 0);
  EXPECT_EQ(status_of(project)["paused"], Json({{"brno", "maintenance"}}));
  project.release();
  // The running job continues; the next round waits for brno.
  ASSERT_TRUE(project.await_events("update_accepted", 3));
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  EXPECT_EQ(project.count_events("published"), 1);
  for (const std::string& training : project.trainings()) EXPECT_NE(training, "brno 2 1");
  const ProcessResult resumed = project.xffl({"resume", "-p", path});
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_NE(resumed.out.find("run 0001 continues at brno"), std::string::npos) << resumed.out;
  EXPECT_EQ(run.finish(), 0);
  EXPECT_EQ(project.count_events("published"), 3);
}

TEST(Pause, IsRecordedWithoutACoordinator) {
  Project project;
  ASSERT_EQ(project.run({{"XFFL_FAILPOINT", "journal:after:4"}}).exit_code, 128 + 9);
  const std::string path = project.path().string();
  EXPECT_EQ(project.xffl({"pause", "-p", path, "alba"}).exit_code, 0);
  EXPECT_EQ(project.history().paused.size(), 1u);
  EXPECT_EQ(project.xffl({"resume", "-p", path, "alba"}).exit_code, 0);
  EXPECT_EQ(project.run().exit_code, 0);
}

TEST(Pause, RejectsAnUnknownFacility) {
  Project project;
  ASSERT_EQ(project.run({{"XFFL_FAILPOINT", "journal:after:4"}}).exit_code, 128 + 9);
  EXPECT_EQ(project.xffl({"pause", "-p", project.path().string(), "nemo"}).exit_code,
            exit_code(ErrorKind::kNotFound));
}

TEST(Continue, AcceptsOtherOperationalKeys) {
  Project project;
  ASSERT_EQ(project.run({{"XFFL_FAILPOINT", "journal:after:8"}}).exit_code, 128 + 9);
  project.set_policy("{on_missing: wait, poll_interval: 30ms, max_attempts: 5}");
  project.write_config();
  EXPECT_EQ(project.run().exit_code, 0);
  EXPECT_EQ(project.count_events("config_changed"), 1);
  EXPECT_EQ(status_of(project)["state"], "completed");
}

// The new configuration is a file and an event.
TEST(Continue, AKillWithinAChangeOfTheConfigurationLosesNothing) {
  for (const char* kill : {"journal:before:1", "journal:after:1"}) {
    Project project;
    ASSERT_EQ(project.run({{"XFFL_FAILPOINT", "journal:after:8"}}).exit_code, 128 + 9);
    project.set_policy("{on_missing: wait, poll_interval: 30ms}");
    project.write_config();
    ASSERT_EQ(project.run({{"XFFL_FAILPOINT", kill}}).exit_code, 128 + 9) << kill;
    EXPECT_EQ(project.count_events("config_changed"), kill[8] == 'a' ? 1 : 0);
    const ProcessResult again = project.run();
    EXPECT_EQ(again.exit_code, 0) << kill << again.err;
    EXPECT_EQ(project.count_events("config_changed"), 1) << kill;
  }
}

// Replaces the text `from` in xffl.yaml by `to`.
void edit(const Project& project, const std::string& from, const std::string& to) {
  const std::filesystem::path file = project.path() / "xffl.yaml";
  std::string yaml = read_file(file, 1 << 20);
  ASSERT_NE(yaml.find(from), std::string::npos) << yaml;
  yaml.replace(yaml.find(from), from.size(), to);
  write_file_atomic(file, yaml);
}

// No job has trained yet: after the path's correction the same command continues the run.
TEST(Continue, AcceptsAnotherModelWhenTheFirstWasUnreadable) {
  Project project;
  const std::string good = read_file(project.path() / "model/model.safetensors", 1 << 20);
  make_dirs(project.path() / "torn");
  std::filesystem::copy(project.path() / "model/config.json", project.path() / "torn/config.json");
  write_file_atomic(project.path() / "torn/model.safetensors", good.substr(0, good.size() - 9));
  edit(project, "model: model", "model: torn");
  EXPECT_EQ(project.run().exit_code, exit_code(ErrorKind::kCorrupt));
  edit(project, "model: torn", "model: model");
  const ProcessResult run = project.run();
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_TRUE(project.history("0001").completed);
}

// `xffl plan` and `xffl run` reject the same change, and name the command that works.
TEST(Continue, MoreRoundsNeedANewRunFromTheNewestModel) {
  Project project;
  project.set_rounds(1);
  project.write_config();
  ASSERT_EQ(project.run().exit_code, 0);
  const std::string path = project.path().string();
  const ProcessResult complete = project.xffl({"plan", "-p", path, "--offline"});
  EXPECT_EQ(complete.exit_code, exit_code(ErrorKind::kNotFound)) << complete.out;
  EXPECT_NE(complete.err.find("run 0001 is complete"), std::string::npos) << complete.err;
  edit(project, "rounds: 1", "rounds: 2");
  const std::string advice = "model: " + (project.run_folder() / "CURRENT").string();
  for (const char* command : {"run", "plan"}) {
    const ProcessResult refused = project.xffl({command, "-p", path});
    EXPECT_EQ(refused.exit_code, exit_code(ErrorKind::kConfig)) << command << refused.out;
    EXPECT_NE(refused.err.find(advice), std::string::npos) << command << refused.err;
  }
  edit(project, "model: model", advice);
  const ProcessResult more = project.xffl({"run", "-p", path, "--new"});
  EXPECT_EQ(more.exit_code, 0) << more.err;
  EXPECT_EQ(project.history("0002").done().rounds_published, 2);
}

// The advice of `xffl status`, "continue with: xffl run", works in the project's folder.
TEST(Run, FindsTheProjectInThisFolder) {
  Project project;
  project.set_rounds(1);
  project.write_config();
  const ProcessResult run = run_process({.argv = {XFFL_BINARY_DIR "/bin/xffl", "run"},
                                         .cwd = project.path(),
                                         .timeout = std::chrono::seconds(120)});
  EXPECT_EQ(run.exit_code, 0) << run.err;
}

TEST(Detach, ContinuesAndCanBeFollowed) {
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

TEST(Detach, RunsInAnotherWorkdir) {
  Project project;
  project.set_rounds(1);
  project.write_config();
  const std::string path = project.path().string(), other = (project.path() / "disk").string();
  const ProcessResult detached = project.xffl({"run", "-p", path, "-w", other, "--detach"});
  EXPECT_EQ(detached.exit_code, 0) << detached.err;
  const ProcessResult followed = project.xffl({"attach", "-p", path, "-w", other});
  EXPECT_EQ(followed.exit_code, 0) << followed.err;
  EXPECT_FALSE(std::filesystem::exists(project.path() / "runs"));
}

TEST(Detach, ContinuesANamedOlderRun) {
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
  EXPECT_NE(detached.out.find("run 0001 continues in process"), std::string::npos) << detached.out;
  project.release();
  EXPECT_EQ(project.xffl({"attach", "-p", path, "--run", "0001"}).exit_code, 0);
  EXPECT_TRUE(project.history("0001").completed);
}

// A mistyped run name must not start a new run.
TEST(Run, RejectsAnUnknownRunName) {
  Project project;
  const std::string path = project.path().string();
  for (const char* command : {"run", "status", "cancel", "attach"}) {
    const ProcessResult result = project.xffl({command, "-p", path, "--run", "0042"});
    EXPECT_EQ(result.exit_code, exit_code(ErrorKind::kNotFound)) << result.err;
    EXPECT_NE(result.err.find("run 0042 does not exist"), std::string::npos) << result.err;
  }
  EXPECT_FALSE(std::filesystem::exists(project.run_folder("0042")));
}

TEST(Detach, ReportsAFailedStart) {
  Project project;
  auto run = project.start_held_run();
  const ProcessResult second = project.xffl({"run", "-p", project.path().string(), "--detach"});
  EXPECT_EQ(second.exit_code, exit_code(ErrorKind::kBusy));
  EXPECT_NE(second.err.find("not started: the journal"), std::string::npos) << second.err;
}

// A second run of the project would train everything again.
TEST(Run, WarnsOfAnotherActiveRun) {
  Project project;
  project.set_rounds(1);
  auto run = project.start_held_run();
  const std::string path = project.path().string();
  const ProcessResult second = project.xffl({"run", "-p", path, "--new", "--detach"});
  EXPECT_NE(second.err.find("another run of this project is still active"), std::string::npos)
      << second.err;
  project.release();
  EXPECT_EQ(run.finish(), 0);
  EXPECT_EQ(project.xffl({"attach", "-p", path, "--run", "0002"}).exit_code, 0);
}

// The jobs of a stopped run would go on beside those of the new run.
TEST(Run, WarnsOfTheJobsOfAStoppedRun) {
  Project project;
  project.set_rounds(1);
  auto run = project.start_held_run();
  const std::string path = project.path().string(), job = project.jobs("alba").at(0);
  run.signal(SIGTERM);
  EXPECT_EQ(run.finish(), exit_code(ErrorKind::kCancelled));
  edit(project, "rounds: 1", "rounds: 2");
  const std::string cancel = "xffl cancel --run 0001";
  const ProcessResult refused = project.xffl({"run", "-p", path});
  EXPECT_NE(refused.err.find("end this one's jobs with `" + cancel), std::string::npos)
      << refused.err;
  const ProcessResult second = project.xffl({"run", "-p", path, "--new", "--detach"});
  for (const std::string& part : {std::string("jobs of an unfinished run go on at the facilities"),
                                  "alba: job " + job + " of round 1", cancel})
    EXPECT_NE(second.err.find(part), std::string::npos) << part << "\n" << second.err;
  EXPECT_EQ(project.xffl({"cancel", "-p", path, "--run", "0001"}).exit_code, 0);
  EXPECT_TRUE(project.history("0001").cancelled);
  EXPECT_TRUE(test::job_ends(job));
  project.release();
  EXPECT_EQ(project.xffl({"attach", "-p", path, "--run", "0002"}).exit_code, 0);
}

TEST(CommandLine, AcceptsFlagsBeforeAndAfterTheCommand) {
  Project project;
  const std::string path = project.path().string();
  const ProcessResult quiet = project.xffl({"plan", "-q", "-p", path});
  EXPECT_EQ(quiet.exit_code, 0) << quiet.err;
  const ProcessResult unknown = project.xffl({"runn", "-p", path});
  EXPECT_EQ(unknown.exit_code, exit_code(ErrorKind::kUsage));
  EXPECT_NE(unknown.err.find("unknown command 'runn'"), std::string::npos) << unknown.err;
}

TEST(Detach, PrintsTheResultOfACompletedRun) {
  Project project;
  project.set_rounds(1);
  project.write_config();
  ASSERT_EQ(project.run().exit_code, 0);
  const ProcessResult again = project.xffl({"run", "-p", project.path().string(), "--detach"});
  EXPECT_EQ(again.exit_code, 0) << again.err;
}

// The terminal shows the facilities' activity in one line that fits its width.
TEST(Output, ShowsTheActivityOfFacilitiesInOneTerminalLine) {
  Project project;
  project.set_rounds(1);
  project.set_training_time(2500);
  project.write_config();
  const ProcessResult run = run_process(
      {.argv = {"script", "-qec",
                "stty cols 40; exec " XFFL_BINARY_DIR "/bin/xffl run -p " + project.path().string(),
                "/dev/null"},
       .env = {{"NO_COLOR", "1"}, {"TERM", "xterm"}},
       .timeout = std::chrono::seconds(120)});
  ASSERT_EQ(run.exit_code, 0) << run.out << run.err;
  const std::string erase = "\r\033[K";
  EXPECT_NE(run.out.find(erase + "round 1 of 1  | alba: runn"), std::string::npos) << run.out;
  // The next output erases the line, which never reaches the last column.
  for (size_t at = 0; (at = run.out.find(erase + "round 1 of 1  |", at)) != std::string::npos;) {
    at += erase.size();
    const size_t end = run.out.find_first_of("\r\n", at);
    EXPECT_LT(end - at, 40u) << run.out.substr(at, end - at);
    EXPECT_EQ(run.out.compare(end, erase.size(), erase), 0) << run.out.substr(at, 80);
  }
}

// `xffl run 2>&1 | tee log`: tee ends before the first message.
TEST(Output, RunOutlivesItsReader) {
  Project project;
  const ProcessResult piped =
      run_process({.argv = {"sh", "-c", "{ sleep 0.2; exec \"$@\" 2>&1; } | true", "sh",
                            XFFL_BINARY_DIR "/bin/xffl", "run", "-p", project.path().string()},
                   .timeout = std::chrono::seconds(120)});
  EXPECT_EQ(piped.exit_code, 0);
  EXPECT_TRUE(project.history().completed);
}

TEST(Output, ClosedDescriptorsAreNotReusedForFiles) {
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

TEST(Output, LostOutputIsAnError) {
  Project project;
  const ProcessResult result =
      run_process({.argv = {"sh", "-c", "exec \"$@\" >/dev/full", "sh", XFFL_BINARY_DIR "/bin/xffl",
                            "config", "schema"},
                   .timeout = std::chrono::seconds(60)});
  EXPECT_EQ(result.exit_code, exit_code(ErrorKind::kIo)) << result.err;
}

TEST(Output, AnErrorShowsNoSecret) {
  const ProcessResult result =
      run_process({.argv = {XFFL_BINARY_DIR "/bin/xffl", "inspect", "password=hunter2hunter2"}});
  EXPECT_EQ(result.exit_code, exit_code(ErrorKind::kNotFound));
  EXPECT_NE(result.err.find("password=[removed] does not exist"), std::string::npos) << result.err;
}

// A soft limit of a process, by its name in /proc.
std::string soft_limit(const test::StartedRun& run, const std::string& name) {
  const std::string limits = read_file("/proc/" + std::to_string(run.pid()) + "/limits", 1 << 16);
  const size_t line = limits.find(name);
  if (line == std::string::npos) return "";
  std::istringstream fields(limits.substr(line + name.size()));
  std::string soft;
  fields >> soft;
  return soft;
}

// A core file would contain keys and passwords.
TEST(Run, WritesNoCoreFile) {
  Project project;
  project.set_hold();
  project.write_config();
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_CORE, &before), 0);
  const rlimit whole{.rlim_cur = before.rlim_max, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_CORE, &whole), 0);  // as in a shell after `ulimit -c unlimited`
  auto run = project.start_run();
  ASSERT_EQ(::setrlimit(RLIMIT_CORE, &before), 0);
  ASSERT_TRUE(project.await_events("submitted", 1));
  EXPECT_EQ(soft_limit(run, "Max core file size"), "0");
}

// Many facilities behind jump hosts need more descriptors than the usual limit.
TEST(Run, RaisesItsLimitOfDescriptors) {
  Project project;
  project.set_hold();
  project.write_config();
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few{.rlim_cur = 256, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  auto run = project.start_run();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_TRUE(project.await_events("submitted", 1));
  EXPECT_EQ(soft_limit(run, "Max open files"),
            std::to_string(std::min<rlim_t>(before.rlim_max, 65'536)));
}

// A detached run has failed: status, logs and attach show the reason, and commands that follow the
// run end with its exit code.
TEST(Detach, ShowsTheReasonOfAFailedRun) {
  Project project;
  project.set_fault("brno", "nan!");
  project.set_rounds(1);
  project.set_policy("{on_missing: fail, poll_interval: 20ms}");
  project.set_hold();
  project.write_config();
  const std::string path = project.path().string();
  ASSERT_EQ(project.xffl({"run", "-p", path, "--detach"}).exit_code, 0);
  project.release();
  for (int i = 0; i < 2; ++i) {  // the second reader gets the same answer
    const ProcessResult followed = project.xffl({"attach", "-p", path});
    EXPECT_EQ(followed.exit_code, exit_code(ErrorKind::kFailed)) << followed.err;
    EXPECT_NE(followed.err.find("brno"), std::string::npos) << followed.err;
  }
  const Json status = status_of(project);
  EXPECT_EQ(status["state"], "stopped");
  EXPECT_EQ(status["stopped"]["kind"], "failed");
  const std::string reason = status["stopped"]["reason"];
  EXPECT_NE(reason.find("brno"), std::string::npos) << reason;
  const std::string shown = project.xffl({"status", "-p", path}).out;
  EXPECT_NE(shown.find("stopped at "), std::string::npos) << shown;
  EXPECT_NE(shown.find("(failed): "), std::string::npos) << shown;
  const std::string logs = project.xffl({"logs", "-p", path}).out;
  EXPECT_NE(logs.find("error the run has ended kind=failed"), std::string::npos) << logs;

  // A continued run shows no old reason; the first coordinator's log is kept.
  project.set_policy("{on_missing: skip, poll_interval: 20ms}");
  project.write_config();
  project.release();
  ASSERT_EQ(project.xffl({"run", "-p", path, "--detach"}).exit_code, 0);
  EXPECT_EQ(project.xffl({"attach", "-p", path}).exit_code, 0);
  EXPECT_EQ(status_of(project)["stopped"], nullptr);
  const std::string output = read_file(project.path() / "runs/detached-0001.out", 1 << 20);
  EXPECT_NE(output.find("xffl: error (failed)"), std::string::npos) << output;
}

TEST(Status, DistinguishesAStoppedFromAKilledCoordinator) {
  Project project;
  const std::string path = project.path().string();
  auto run = project.start_held_run();
  run.signal(SIGTERM);
  EXPECT_EQ(run.finish(), exit_code(ErrorKind::kCancelled));
  EXPECT_EQ(status_of(project)["stopped"]["kind"], "cancelled");
  EXPECT_EQ(project.xffl({"attach", "-p", path}).exit_code, exit_code(ErrorKind::kCancelled));

  auto killed = project.start_run();
  ASSERT_TRUE(project.await_events("run_resumed", 1));
  killed.kill();
  EXPECT_EQ(status_of(project)["stopped"], nullptr);
  const std::string shown = project.xffl({"status", "-p", path}).out;
  EXPECT_NE(shown.find("ended without a reason"), std::string::npos) << shown;
  EXPECT_EQ(project.xffl({"attach", "-p", path}).exit_code, exit_code(ErrorKind::kFailed));
  project.release();
  EXPECT_EQ(project.run().exit_code, 0);
}

TEST(Status, NamesAnOlderRunInItsAdvice) {
  Project project;
  project.set_rounds(1);
  project.write_config();
  const std::string path = project.path().string();
  ASSERT_EQ(project.run({{"XFFL_FAILPOINT", "journal:after:4"}}).exit_code, 128 + 9);
  EXPECT_NE(project.xffl({"status", "-p", path}).out.find("continue with: xffl run\n"),
            std::string::npos);
  ASSERT_EQ(project.xffl({"run", "-p", path, "--new"}).exit_code, 0);
  const std::string older = project.xffl({"status", "-p", path, "--run", "0001"}).out;
  EXPECT_NE(older.find("continue with: xffl run --run 0001\n"), std::string::npos) << older;
}

// `xffl resume` must not say that the facility continues: another reason blocks it.
TEST(Resume, ReportsAFacilityThatNoUserHadPaused) {
  Project project;
  project.set_fault("brno", "nan@2!");
  project.set_rounds(2);
  project.set_policy("{on_missing: fail, poll_interval: 20ms}");
  project.write_config();
  ASSERT_EQ(project.run().exit_code, exit_code(ErrorKind::kFailed));
  const std::string path = project.path().string();
  const ProcessResult missing = project.xffl({"resume", "-p", path, "brno"});
  EXPECT_EQ(missing.exit_code, exit_code(ErrorKind::kFailed)) << missing.out;
  EXPECT_NE(missing.err.find("brno was not paused"), std::string::npos) << missing.err;
  EXPECT_NE(missing.err.find("missing"), std::string::npos) << missing.err;
  EXPECT_EQ(missing.out.find("continues"), std::string::npos) << missing.out;
  const ProcessResult fine = project.xffl({"resume", "-p", path, "alba"});
  EXPECT_EQ(fine.exit_code, 0) << fine.err;
  EXPECT_NE(fine.out.find("alba was not paused"), std::string::npos) << fine.out;
  EXPECT_EQ(fine.out.find("continues"), std::string::npos) << fine.out;
}

}  // namespace
}  // namespace xffl
