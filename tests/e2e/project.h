// A project of two facilities on this machine whose trainer is the fake one, driven through the
// real program.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "support/temp_dir.h"
#include "xffl/base/process.h"
#include "xffl/journal/journal.h"
#include "xffl/round/history.h"

namespace xffl::test {

// Where a facility is, as lines of xffl.yaml, and where its trainer notes its trainings.
struct Placement {
  std::string yaml;                      // with the indentation of a facility's keys
  std::string trainings;                 // the path there
  std::filesystem::path trainings_here;  // the same file as this machine sees it
};

class Project {
 public:
  /// Writes a tiny model and xffl.yaml with facilities alba and brno.
  Project();

  std::filesystem::path path() const { return dir_.path() / "project"; }
  std::filesystem::path run_folder(const std::string& run = "0001") const {
    return path() / "runs" / run;
  }

  /// How a facility's trainer misbehaves; see fake_trainer.cc.
  void set_fault(const std::string& facility, const std::string& fault) {
    faults_[facility] = fault;
  }
  /// By default a facility is a folder of this machine.
  void place(const std::string& facility, const Placement& placement) {
    placements_[facility] = placement;
  }
  void set_policy(const std::string& yaml) { policy_ = yaml; }
  void set_rounds(int rounds) { rounds_ = rounds; }
  void set_training_time(int milliseconds) { training_milliseconds_ = milliseconds; }
  /// Trainers wait, a minute at most, until the file hold() is gone.
  void set_hold() { held_ = true; }
  std::filesystem::path hold() const { return path() / "hold"; }
  void write_config() const;

  /// Runs `xffl ARGS...` to its end.
  ProcessResult xffl(std::vector<std::string> args, std::map<std::string, std::string> env = {},
                     std::chrono::seconds timeout = std::chrono::seconds(60)) const;
  ProcessResult run(std::map<std::string, std::string> env = {}) const {
    return xffl({"run", "-p", path().string()}, env);
  }
  /// Starts `xffl run` and returns its process id; the caller ends and reaps it.
  pid_t start_run() const;

  std::vector<journal::Event> events(const std::string& run = "0001") const;
  round::History history(const std::string& run = "0001") const;
  /// Manifest root hash of CURRENT.
  std::string current_sha256() const;
  /// "facility round attempt" of every training that ran to its report.
  std::vector<std::string> trainings() const;
  /// Removes runs, work folders and the log of trainings: a fresh start with the same model.
  void forget_runs() const;

 private:
  void write_model() const;

  TempDir dir_;
  std::map<std::string, std::string> faults_;
  std::map<std::string, Placement> placements_;
  std::string policy_ = "{on_missing: wait, poll_interval: 20ms}";
  int rounds_ = 3;
  int training_milliseconds_ = 0;
  bool held_ = false;
};

}  // namespace xffl::test
