// A project whose facilities alba and brno are real: reached by SSH, run by Slurm.
#pragma once

#include "e2e/project.h"
#include "support/bed.h"

namespace xffl::test {

/// How xffl.yaml describes a facility of the bed; `more` are further keys, indented by four.
Placement placement(const Facility& facility, int nodes = 2, const std::string& more = "");

class BedProject : public Project {
 public:
  /// Flavours of both facilities; see scripts/dev_cluster.sh.
  explicit BedProject(const std::vector<std::string>& flavours = {});

  bool up() const { return bed_.up(); }
  const std::string& why_not() const { return bed_.why_not(); }
  const Facility& facility(const std::string& name) const { return bed_.facility(name); }

  /// Runs `xffl run`; beds are slower than folders.
  ProcessResult run(std::map<std::string, std::string> env = {},
                    std::chrono::seconds timeout = std::chrono::seconds(180)) const {
    return xffl({"run", "-p", path().string()}, std::move(env), timeout);
  }
  /// Waits until the journal has `count` events of that kind; false after `patience`.
  bool await_events(const std::string& kind, int count,
                    std::chrono::seconds patience = std::chrono::seconds(60)) const;
  /// Also at the facilities.
  void forget_runs() const;
  /// Jobs that Slurm still has queued or running there, by name.
  std::string jobs_left(const std::string& facility) const;

 private:
  Bed bed_;
};

}  // namespace xffl::test
