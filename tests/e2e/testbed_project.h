// A project whose facilities alba and brno have a real sshd and a real Slurm.
#pragma once

#include <functional>

#include "e2e/project.h"
#include "support/testbed.h"

namespace xffl::test {

// Skips the test on a machine that cannot run a testbed.
#define NEED_TESTBED(project) \
  if (!(project).up()) GTEST_SKIP() << (project).why_not()

/// The keys of a facility of the testbed in xffl.yaml: `slurm` has the facility's keys of `slurm`,
/// `more` has further keys, indented by four.
Placement placement(const Facility& facility, const std::string& more = "",
                    const std::string& slurm = "nodes: 2, time: 5m, warning: 1m");

/// The final model of the same project with local facilities, after `change`.
std::string local_sha256(const std::function<void(Project&)>& change = {});

class TestbedProject : public Project {
 public:
  /// Flavours of both facilities; see scripts/dev_cluster.sh.
  explicit TestbedProject(const std::vector<std::string>& flavours = {});

  bool up() const { return testbed_.up(); }
  const std::string& why_not() const { return testbed_.why_not(); }
  const Facility& facility(const std::string& name) const { return testbed_.facility(name); }

  /// Runs `xffl run`, with a longer time limit than for local facilities.
  ProcessResult run(std::map<std::string, std::string> env = {},
                    std::chrono::seconds timeout = std::chrono::seconds(180)) const {
    return xffl({"run", "-p", path().string()}, std::move(env), timeout);
  }
  /// Removes runs and work folders here and at the facilities.
  void forget_runs() const;
  /// The text of `xffl status`.
  std::string status() const { return xffl({"status", "-p", path().string()}).out; }
  bool await_status(const std::string& text) const {
    return await([&] { return status().find(text) != std::string::npos; });
  }
  /// Waits for a running job of a facility whose script has begun; empty when none begins. A job
  /// may run on for a moment after its report: `other_than` excludes it.
  std::string running_job(const std::string& facility, const std::string& other_than = "") const;
  /// The oracle: the model `sha256`, every round published once, no job left, and exactly the
  /// trainings `trainings` (by default every training of three rounds once, in its first attempt).
  /// Each of them has begun once, and no other, except for `also_started`: trainings that have
  /// begun beside those, without a report or before Slurm requeued their job.
  void expect_result(const std::string& sha256, const std::string& context = "",
                     const std::vector<std::string>& trainings = {"alba 1 1", "alba 2 1",
                                                                  "alba 3 1", "brno 1 1",
                                                                  "brno 2 1", "brno 3 1"},
                     const std::vector<std::string>& also_started = {}) const;
  /// The names of the jobs that Slurm has pending or running at a facility.
  std::string jobs_left(const std::string& facility) const;

 private:
  Testbed testbed_;
};

}  // namespace xffl::test
