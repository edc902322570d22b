// A project whose facilities alba and brno are real: reached by SSH, run by Slurm.
#pragma once

#include <functional>

#include "e2e/project.h"
#include "support/testbed.h"

namespace xffl::test {

// Skips the test where this machine cannot have facilities.
#define NEED_TESTBED(project) \
  if (!(project).up()) GTEST_SKIP() << (project).why_not()

/// How xffl.yaml describes a facility of the testbed: `slurm` are its keys there beside the usual
/// ones, `more` are further keys of the facility, indented by four.
Placement placement(const Facility& facility, const std::string& more = "",
                    const std::string& slurm = "nodes: 2, time: 5m, warning: 1m");

/// The final model of the same project with its facilities in folders of this machine.
std::string local_sha256();

/// Whether `what` becomes true within `patience`.
bool await(const std::function<bool()>& what,
           std::chrono::seconds patience = std::chrono::seconds(120));

class TestbedProject : public Project {
 public:
  /// Flavours of both facilities; see scripts/dev_cluster.sh.
  explicit TestbedProject(const std::vector<std::string>& flavours = {});

  bool up() const { return testbed_.up(); }
  const std::string& why_not() const { return testbed_.why_not(); }
  const Facility& facility(const std::string& name) const { return testbed_.facility(name); }

  /// Runs `xffl run`; testbeds are slower than folders.
  ProcessResult run(std::map<std::string, std::string> env = {},
                    std::chrono::seconds timeout = std::chrono::seconds(180)) const {
    return xffl({"run", "-p", path().string()}, std::move(env), timeout);
  }
  /// Also at the facilities.
  void forget_runs() const;
  /// `xffl status`, for people.
  std::string status() const { return xffl({"status", "-p", path().string()}).out; }
  bool await_status(const std::string& text) const {
    return await([&] { return status().find(text) != std::string::npos; });
  }
  /// A running job of a facility, once its trainer's script has begun; empty after a while. One
  /// whose report is there may run on for a moment: `other_than` names it where the next one is
  /// meant.
  std::string running_job(const std::string& facility, const std::string& other_than = "") const;
  /// The oracle: this model, every round published once, no job left; and every training of three
  /// rounds ran once, in its first attempt, unless `trainings` says otherwise.
  void expect_result(const std::string& sha256, const std::string& what = "",
                     const std::vector<std::string>& trainings = {"alba 1 1", "alba 2 1",
                                                                  "alba 3 1", "brno 1 1",
                                                                  "brno 2 1", "brno 3 1"}) const;
  /// Jobs that Slurm still has queued or running there, by name.
  std::string jobs_left(const std::string& facility) const;

 private:
  Testbed testbed_;
};

}  // namespace xffl::test
