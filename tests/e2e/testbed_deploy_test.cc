// `xffl deploy` to a real Slurm facility behind SSH whose log-in node must not unpack: the bundle
// is hashed, unpacked and started by a Slurm job. On the log-in node tar, gzip and sha256sum leave
// a trace and fail.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <fstream>

#include "e2e/testbed_project.h"
#include "support/small_bundle.h"
#include "xffl/base/file.h"
#include "xffl/base/process.h"

namespace xffl {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr const char* kXffl = XFFL_BINARY_DIR "/bin/xffl";

class TestbedDeploy : public testing::Test {
 protected:
  void SetUp() override {
    NEED_TESTBED(testbed_);
    make_bundle("");
    write_file_atomic(dir_ / "known_hosts", read_file(brno().known_hosts, 1 << 20));
    write_config("");
    forbid_on_login_node();
  }
  void TearDown() override {
    if (fs::exists(trace())) ADD_FAILURE() << "on the log-in node: " << read_file(trace(), 1 << 16);
  }

  void make_bundle(const std::string& comment) {
    archive_ = test::make_small_bundle(
        dir_.path(), "sleep 1\nexec echo xffl-train 0.1.0 on $(uname -n)\n#" + comment);
    name_ = archive_.filename().string();
    name_ = name_.substr(0, name_.size() - std::string(".tar.gz").size());
  }
  const test::Facility& brno() const { return testbed_.facility("brno"); }
  fs::path scratch() const { return brno().folder / "scratch"; }
  fs::path trace() const { return scratch() / "trace"; }
  fs::path programs() const { return scratch() / "work/xffl.programs"; }
  fs::path job(int number) const {
    return programs() / ".jobs" / name_ / ("job" + std::to_string(number));
  }
  void write_config(const std::string& keys) const {
    write_file_atomic(dir_ / "xffl.yaml",
                      "project: lab\nmodel: model\nrounds: 1\ntraining: {steps_per_round: 2}\n"
                      "facilities:\n  brno:\n" +
                          test::placement(brno(), "    deploy: {unpack: job}\n" + keys).yaml +
                          "    trainer: bundle\n    data: {train: [" + brno().scratch +
                          "/x.tokens]}\n");
  }
  // Compute nodes have mounts of their own, and keep the programs.
  void forbid_on_login_node() const {
    const ProcessResult done = brno().exec_on_login(
        {"sh", "-c",
         R"sh(printf '#!/bin/sh\necho "$0 $*" >>/scratch/trace\nexit 1\n' >/scratch/forbidden &&
chmod 755 /scratch/forbidden && for program in tar gzip sha256sum; do
mount --bind /scratch/forbidden "$(command -v $program)" || exit 1; done)sh"});
    ASSERT_EQ(done.exit_code, 0) << done.err;
    ASSERT_NE(brno().exec_as_user({"tar", "--version"}).exit_code, 0);
    ASSERT_THAT(read_file(trace(), 1 << 16), HasSubstr("tar --version"));
    fs::remove(trace());
  }
  std::vector<std::string> command() const {
    return {kXffl, "deploy", "brno", archive_.string(), "-p", dir_.path().string()};
  }
  ProcessResult deploy() const {
    return run_process({.argv = command(), .timeout = std::chrono::seconds(120)});
  }
  std::string current() const {
    const fs::path link = programs() / "current";
    return fs::is_symlink(link) ? fs::read_symlink(link).string() : "";
  }
  // The jobs that have begun.
  int started_jobs() const {
    int started = 0;
    for (int number = 1; fs::exists(job(number)); ++number)
      if (fs::exists(job(number) / "claim/owner")) ++started;
    return started;
  }

  test::Testbed testbed_{{"brno"}};
  test::TempDir dir_;
  fs::path archive_;
  std::string name_;
};

TEST_F(TestbedDeploy, ASlurmJobUnpacksAndStartsTheBundle) {
  const ProcessResult done = deploy();
  ASSERT_EQ(done.exit_code, 0) << done.err << done.out;
  EXPECT_THAT(done.out, HasSubstr("starts there: xffl-train 0.1.0 on brno1"));
  EXPECT_THAT(done.err, HasSubstr("is submitted"));
  EXPECT_EQ(current(), name_);
  struct stat times = {};
  ASSERT_EQ(::stat((programs() / name_ / "lib/large").c_str(), &times), 0);
  EXPECT_LT(time(nullptr) - times.st_atime, 3600);
  EXPECT_LT(time(nullptr) - times.st_mtime, 3600);
  const ProcessResult again = deploy();
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("was in place and is intact"));
}

// Kills when a file of each step appears.
TEST_F(TestbedDeploy, AfterAKillAtAnyStepItContinuesWithTheSameJob) {
  int kills = 0;
  for (const std::string step : {"staging", "place.sh", "job.id", "claim/owner", "out/report.part",
                                 "out/report.txt", "current"}) {
    make_bundle(step);
    fs::remove(programs() / "current");
    const fs::path seen = step == "staging"   ? programs() / ".staging" / name_
                          : step == "current" ? programs() / "current"
                                              : job(1) / step;
    const pid_t killed = start_detached({.argv = command()}, dir_ / "killed.log");
    EXPECT_TRUE(test::await([&] {
      return fs::exists(seen) || fs::is_symlink(seen) || fs::is_symlink(programs() / "current");
    })) << step
        << read_file(dir_ / "killed.log", 1 << 20);
    ::kill(killed, SIGKILL);
    if (wait_for_exit(killed) != 0) ++kills;
    const bool was_promoted = current() == name_;
    const ProcessResult done = deploy();
    ASSERT_EQ(done.exit_code, 0) << step << done.err << read_file(dir_ / "killed.log", 1 << 20);
    EXPECT_EQ(current(), name_) << step;
    EXPECT_FALSE(fs::exists(programs() / ".staging")) << step;
    // After the promotion another deployment may verify the bundle by a job of its own.
    EXPECT_LE(started_jobs(), was_promoted ? 2 : 1) << step << done.err;
    EXPECT_GE(started_jobs(), 1) << step;
  }
  EXPECT_GE(kills, 5);
}

TEST_F(TestbedDeploy, ADamagedArchiveIsFoundBeforeThePromotion) {
  write_config("    environment: ['while [ -e /scratch/hold ]; do sleep 0.1; done']\n");
  write_file_atomic(scratch() / "hold", "");
  fs::permissions(scratch() / "hold", fs::perms::owner_all | fs::perms::others_read);
  const pid_t interrupted = start_detached({.argv = command()}, dir_ / "log");
  ASSERT_TRUE(test::await([&] { return fs::exists(job(1) / "claim/owner"); }))
      << read_file(dir_ / "log", 1 << 20);
  ::kill(interrupted, SIGINT);
  EXPECT_NE(wait_for_exit(interrupted), 0);
  EXPECT_THAT(read_file(dir_ / "log", 1 << 20),
              HasSubstr("goes on, and the same command follows it"));
  const fs::path sent = programs() / ".staging" / name_ / (name_ + ".tar.gz");
  test::flip_byte(sent, static_cast<std::streamoff>(fs::file_size(sent) / 2));
  fs::remove(scratch() / "hold");
  const ProcessResult found = deploy();
  EXPECT_NE(found.exit_code, 0);
  EXPECT_THAT(found.err, HasSubstr("was damaged at the facility and is removed"));
  EXPECT_EQ(current(), "");
  EXPECT_FALSE(fs::exists(programs() / name_));
  EXPECT_EQ(started_jobs(), 1);
  const ProcessResult again = deploy();
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(current(), name_);
}

TEST(TestbedDeployByGridEngine, AJobUnpacksAndStartsTheBundle) {
  test::Testbed testbed({"brno"}, {"--queue", "gridengine"});
  NEED_TESTBED(testbed);
  const test::Facility& brno = testbed.facility("brno");
  test::TempDir dir;
  const fs::path archive =
      test::make_small_bundle(dir.path(), "exec echo xffl-train 0.1.0 on $(uname -n)");
  write_file_atomic(dir / "known_hosts", read_file(brno.known_hosts, 1 << 20));
  write_file_atomic(
      dir / "xffl.yaml",
      "project: lab\nmodel: model\nrounds: 1\ntraining: {steps_per_round: 2}\nfacilities:\n"
      "  brno:\n    access: ssh\n    scheduler: gridengine\n    ssh: {hosts: ['" +
          brno.host + "'], user: " + brno.user + ", keys: ['" + brno.key.string() +
          "'], agent: false}\n    gridengine: {nodes: 2, parallel_environment: nodes, time: 5m, "
          "warning: 1m, settle_time: 2s}\n    poll_interval: 300ms\n    workdir: " +
          brno.scratch +
          "/work\n    deploy: {unpack: job}\n    trainer: bundle\n    data: {train: [" +
          brno.scratch + "/x.tokens]}\n");
  const std::vector<std::string> command = {kXffl, "deploy",           "brno", archive.string(),
                                            "-p",  dir.path().string()};
  const ProcessResult done = run_process({.argv = command, .timeout = std::chrono::seconds(120)});
  ASSERT_EQ(done.exit_code, 0) << done.err << done.out;
  EXPECT_THAT(done.out, testing::ContainsRegex("starts there: xffl-train 0.1.0 on brno[12]"));
  EXPECT_THAT(done.err, HasSubstr("is submitted"));
  const ProcessResult again = run_process({.argv = command, .timeout = std::chrono::seconds(120)});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("was in place and is intact"));
}

}  // namespace
}  // namespace xffl
