// A login node at the user's process limit (RLIMIT_NPROC), before sbatch and after it: the
// facility's part of the round waits, nothing is submitted twice, and the other facility goes on.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <iostream>

#include "e2e/run_with_stop.h"
#include "e2e/testbed_project.h"
#include "xffl/base/file.h"

namespace xffl {
namespace {

namespace fs = std::filesystem;
using test::await;
using test::Facility;
using test::local_sha256;
using test::TestbedProject;

// The number of a user's processes and threads, which the kernel compares with RLIMIT_NPROC.
rlim_t tasks_of(uid_t user) {
  rlim_t tasks = 0;
  std::error_code gone;
  for (const auto& entry : fs::directory_iterator("/proc", gone)) {
    std::ifstream status(entry.path() / "status");
    uid_t real = ~uid_t{0};
    rlim_t threads = 0;
    for (std::string key; status >> key;) {
      if (key == "Uid:") status >> real;
      if (key == "Threads:") status >> threads;
    }
    if (real == user) tasks += threads;
  }
  return tasks;
}

class ProcessLimit {
 public:
  explicit ProcessLimit(const Facility& facility) : facility_(facility) {
    struct stat info {};
    EXPECT_EQ(::stat((facility.folder / "scratch").c_str(), &info), 0);
    user_ = info.st_uid;
  }
  /// Allows `more` tasks beyond the sshd sessions that exist. Waits for the end of all others; a
  /// pending job has none.
  void set(rlim_t more) const {
    ASSERT_TRUE(await([&] {
      return facility_.exec_on_login({"squeue", "-h", "-t", "running,completing"}).out.empty() &&
             tasks_of(user_) <= 2;
    })) << tasks_of(user_);
    limit(tasks_of(user_) + more);
  }
  void lift() const { limit(RLIM_INFINITY); }

 private:
  // A later child of sshd inherits the limit.
  void limit(rlim_t tasks) const {
    rlimit here{};
    ASSERT_EQ(::getrlimit(RLIMIT_NPROC, &here), 0);
    const std::string soft = std::to_string(std::min(tasks, here.rlim_max)) + ":";
    const std::string user = std::to_string(user_);
    for (const pid_t pid : facility_.pids("sshd")) {
      std::vector<std::string> argv = {"prlimit", "--pid=" + std::to_string(pid),
                                       "--nproc=" + soft};
      if (run_process({.argv = argv}).exit_code == 0) continue;  // root's
      argv.insert(argv.begin(),
                  {"setpriv", "--reuid=" + user, "--regid=" + user, "--clear-groups"});
      run_process({.argv = argv});  // fails for a process that has ended
    }
  }

  const Facility& facility_;
  uid_t user_ = 0;
};

// The names of the jobs that Slurm has ended: each submission counts.
std::vector<std::string> ended_jobs(const Facility& facility) {
  std::ifstream log(facility.folder / "log/jobcomp.txt");
  std::vector<std::string> names;
  for (std::string line; std::getline(log, line);)
    if (const size_t at = line.find(" Name="); at != std::string::npos)
      names.push_back(line.substr(at + 6, line.find(' ', at + 1) - at - 6));
  return names;
}

// A federation of one round. alba's limit holds from a record of its submission on, until brno's
// update is accepted and alba's trouble is shown.
class TestbedProcessLimit : public testing::Test {
 protected:
  TestbedProcessLimit() {
    project_.set_rounds(1);
    if (project_.up()) project_.write_config();
  }
  const Facility& alba() const { return project_.facility("alba"); }
  /// Runs the federation; `limit()` acts at alba's `record`, `lift()` afterwards. Returns a status
  /// of the time between them that shows the trouble.
  std::string run_with(const std::function<void()>& limit, const std::function<void()>& lift,
                       const std::string& record = "submit_intended") {
    test::RunWithStop run(project_, record, 1, limit);
    std::string trouble;
    EXPECT_TRUE(await([&] {
      const std::string status = project_.status();
      if (run.acted() && status.find("retrying") != std::string::npos) trouble = status;
      return !trouble.empty() && status.find("brno: accepted") != std::string::npos;
    })) << project_.status();
    lift();
    EXPECT_TRUE(project_.await_events("published", 1)) << project_.status();
    EXPECT_EQ(run.finish(), 0);
    project_.expect_result(local_sha256([](test::Project& here) { here.set_rounds(1); }), "",
                           {"alba 1 1", "brno 1 1"});
    EXPECT_EQ(ended_jobs(alba()).size(), 1u) << testing::PrintToString(ended_jobs(alba()));
    return trouble;
  }

  TestbedProject project_;
};

TEST_F(TestbedProcessLimit, SshdRefusesTheSubmission) {
  NEED_TESTBED(project_);
  const ProcessLimit limit(alba());
  const std::string status = run_with([&] { limit.set(0); }, [&] { limit.lift(); });
  EXPECT_NE(status.find("refused while starting a command"), std::string::npos) << status;
}

TEST_F(TestbedProcessLimit, TheLogInShellCannotFork) {
  NEED_TESTBED(project_);
  const ProcessLimit limit(alba());
  // bash reads .bashrc before it runs sshd's command, and tries to fork for 15 seconds.
  alba().exec_as_user({"sh", "-c", "echo 'today=$(date)' >.bashrc"});
  const std::string status = run_with([&] { limit.set(1); }, [&] { limit.lift(); });
  EXPECT_NE(status.find("fork: retry: Resource temporarily unavailable"), std::string::npos)
      << status;
}

// The job exists, but sbatch, a script at this site, ends with bash's 254.
TEST_F(TestbedProcessLimit, AFailureAfterTheSubmissionSubmitsNoSecondJob) {
  NEED_TESTBED(project_);
  const std::string wrapper = "/usr/local/bin/sbatch";
  const std::string script =
      "#!/bin/bash\nanswer=$(/usr/bin/sbatch \"$@\")\nulimit -Su 1\necho \"$(date)\" >&2\n"
      "echo \"$answer\"\n";
  const std::string status = run_with(
      [&] {
        alba().exec_on_login({"sh", "-c", "cat >" + wrapper + " && chmod 755 " + wrapper}, script);
      },
      [&] {
        alba().exec_on_login({"rm", "-f", wrapper});
      });
  EXPECT_NE(status.find("fork: "), std::string::npos) << status;
}

// The job waits in a closed partition, so that its tasks do not count.
TEST_F(TestbedProcessLimit, QueriesThatCannotStartLeaveTheJobUnknown) {
  NEED_TESTBED(project_);
  const ProcessLimit limit(alba());
  const auto partition = [&](const std::string& state) {
    EXPECT_EQ(alba().exec_on_login({"scontrol", "update", "PartitionName=main", state}).exit_code,
              0);
  };
  partition("State=DOWN");
  const std::string status = run_with([&] { limit.set(1); },
                                      [&] {
                                        partition("State=UP");
                                        limit.lift();
                                      },
                                      "submitted");
  EXPECT_NE(status.find("alba: submitted, retrying: "), std::string::npos) << status;
}

}  // namespace
}  // namespace xffl
