// A project with two facilities and xffl-fake-trainer, run through the real program.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "support/await.h"
#include "support/temp_dir.h"
#include "xffl/base/process.h"
#include "xffl/history/run_history.h"
#include "xffl/history/store.h"

namespace xffl::test {

// A facility's access as lines of xffl.yaml, and the path at which its trainer records trainings.
struct Placement {
  std::string yaml;                      // with the indentation of a facility's keys
  std::string trainings;                 // the path there
  std::filesystem::path trainings_here;  // the same file as this machine sees it
};

// A running `xffl run`. The destructor kills it.
class StartedRun {
 public:
  explicit StartedRun(pid_t pid) : pid_(pid) {}
  StartedRun(StartedRun&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}
  StartedRun& operator=(StartedRun&&) = delete;
  ~StartedRun() { kill(); }

  pid_t pid() const { return pid_; }
  void signal(int number) const;
  /// Waits until the process has stopped itself (XFFL_FAILPOINT); false when it ends or runs on.
  bool await_stop(std::chrono::seconds timeout = std::chrono::seconds(180)) const;
  /// Kills and reaps the process.
  void kill();
  /// Waits until the process ends; returns its exit code, or 128 + signal. After `timeout` the test
  /// fails, the process is killed and the result is -1.
  int finish(std::chrono::seconds timeout = std::chrono::seconds(300));

 private:
  pid_t pid_;
};

class Project {
 public:
  /// Writes a tiny model and xffl.yaml with facilities alba and brno.
  Project();

  std::filesystem::path path() const { return dir_.path() / "project"; }
  std::filesystem::path run_folder(const std::string& run = "0001") const {
    return path() / "runs" / run;
  }

  /// A fault of a facility's trainer; see fake_trainer.cc.
  void set_fault(const std::string& facility, const std::string& fault) {
    faults_[facility] = fault;
  }
  /// Sets the access of a facility; by default it is a local folder.
  void place(const std::string& facility, const Placement& placement) {
    placements_[facility] = placement;
  }
  void set_policy(const std::string& yaml) { policy_ = yaml; }
  void set_aggregation(const std::string& yaml) { aggregation_ = yaml; }
  /// Adds lines of xffl.yaml to a facility's keys.
  void set_keys(const std::string& facility, const std::string& yaml) { keys_[facility] = yaml; }
  /// Replaces the model by one with `rows` rows of 16 bytes in its first tensor.
  void set_model_rows(int rows) const { write_model(rows); }
  void set_rounds(int rounds) { rounds_ = rounds; }
  /// Adds a line to the environment of a facility's jobs.
  void set_environment(const std::string& facility, const std::string& line) {
    environment_[facility] = line;
  }
  /// From the next write_config() on the facility has a validation set of this name.
  void set_validation(const std::string& facility, const std::string& set) {
    validation_[facility] = set;
  }
  void set_training_time(int milliseconds) { training_milliseconds_ = milliseconds; }
  /// From the next write_config() on, no training ends before its facility is released.
  void set_hold() { held_ = true; }
  /// The same for one facility, in one round or (0) in all.
  void hold(const std::string& facility, int round = 0) const;
  void release(const std::string& facility, int round = 0) const;
  void release() const {
    for (const auto& [name, place] : placements_) release(name);
  }
  /// Waits until a training of the facility has begun and is held: its job has verified its input.
  bool await_held_training(const std::string& facility) const;
  void write_config() const;

  /// Runs `xffl ARGS...` to its end.
  ProcessResult xffl(std::vector<std::string> args, std::map<std::string, std::string> env = {},
                     std::chrono::seconds timeout = std::chrono::seconds(180)) const;
  ProcessResult run(std::map<std::string, std::string> env = {}) const {
    return xffl({"run", "-p", path().string()}, env);
  }
  /// Starts `xffl run` with its output in log().
  StartedRun start_run(std::map<std::string, std::string> env = {}) const;
  /// Writes xffl.yaml with held trainings, starts `xffl run` and waits until both jobs are
  /// submitted.
  StartedRun start_held_run();
  std::filesystem::path log() const { return dir_.path() / "run.log"; }
  /// Waits until the journal has `count` events of `kind`; false after `timeout`.
  bool await_events(const std::string& kind, int count,
                    std::chrono::seconds timeout = std::chrono::seconds(120)) const;

  /// The ids of a facility's submitted jobs.
  std::vector<std::string> jobs(const std::string& facility) const;
  /// Empty while there is no journal.
  std::vector<history::StoredEvent> events(const std::string& run = "0001") const;
  int count_events(const std::string& kind) const;
  history::RunState history(const std::string& run = "0001") const;
  /// The manifest's root hash of CURRENT.
  std::string current_sha256() const;
  /// "facility round attempt" of every training with a report, sorted.
  std::vector<std::string> trainings() const { return lines_of_trainings(""); }
  /// The same for every training that has begun, also those that never reported.
  std::vector<std::string> started_trainings() const { return lines_of_trainings(".started"); }
  /// Removes runs, work folders and the log of trainings, but not the model.
  void forget_runs() const;

 private:
  void write_model(int rows) const;
  std::vector<std::string> lines_of_trainings(const std::string& suffix) const;
  std::filesystem::path hold_file(const std::string& facility, int round) const;
  /// The file that a held training creates.
  std::filesystem::path held_training(const std::string& facility) const;

  TempDir dir_;
  std::map<std::string, std::string> faults_;
  std::map<std::string, Placement> placements_;
  std::map<std::string, std::string> validation_;
  std::string policy_ = "{on_missing: wait, poll_interval: 20ms}";
  std::string aggregation_;
  std::map<std::string, std::string> keys_, environment_;
  int rounds_ = 3;
  int training_milliseconds_ = 0;
  bool held_ = false;
};

/// Waits until the process of a local job has ended; false after a time limit.
bool job_ends(const std::string& job_id);
/// Damages one byte of a file; its size stays.
void flip_byte(const std::filesystem::path& file, std::streamoff offset);
/// Each training of three rounds, once, in its first attempt.
inline const std::vector<std::string> kOnceEach = {"alba 1 1", "alba 2 1", "alba 3 1",
                                                   "brno 1 1", "brno 2 1", "brno 3 1"};
/// The model of an undisturbed run, whose files are removed afterwards.
std::string undisturbed_sha256(const Project& project);
/// The oracle after a disturbed run of three rounds: the model `expected`, every round published
/// once, every training started once and reported once, no temporary file.
void expect_undisturbed_result(const Project& project, const std::string& sha256,
                               const std::string& context);

}  // namespace xffl::test
