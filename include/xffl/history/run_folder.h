// The files of a run on the coordinator's machine: their paths, users' requests, and the activities
// that `xffl status` shows.
//
//   <workdir>/runs/0003/
//     journal.db  config.resolved.yaml  coordinator.log  CURRENT -> r0002/global
//     r0002/global/  r0002/global.packed/  r0002/master/
//     r0002/<facility>/{job.json, job.sh, report.json, update/, metrics-a1.jsonl}
#pragma once

#include <condition_variable>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "xffl/base/clock.h"
#include "xffl/base/json.h"
#include "xffl/base/names.h"

namespace xffl::history {

class RunFolder {
 public:
  RunFolder(std::filesystem::path runs, RunName run)
      : path_(runs / run.str()), run_(std::move(run)) {}

  const std::filesystem::path& path() const { return path_; }
  const RunName& run() const { return run_; }
  std::filesystem::path journal() const { return path_ / "journal.db"; }
  std::filesystem::path config() const { return path_ / "config.resolved.yaml"; }
  std::filesystem::path log() const { return path_ / "coordinator.log"; }
  std::filesystem::path current() const { return path_ / "CURRENT"; }
  std::filesystem::path requests() const { return path_ / "requests"; }
  std::filesystem::path login() const { return path_ / "login.sock"; }
  std::filesystem::path live() const { return path_ / "live.json"; }
  /// What the facilities' accounting has on record; exists when a user has asked for it.
  std::filesystem::path accounting() const { return path_ / "accounting.json"; }
  /// The results of `xffl verify`; exists when a user has verified the run.
  std::filesystem::path verification() const { return path_ / "verification.json"; }
  std::filesystem::path round(int round) const;
  std::filesystem::path global(int round) const { return this->round(round) / "global"; }
  std::filesystem::path master(int round) const { return this->round(round) / "master"; }
  /// The global model as differences from the previous global model, while a round needs them.
  std::filesystem::path packed(int round) const { return this->round(round) / "global.packed"; }
  /// With LoRA: the model under the adapters global and master.
  std::filesystem::path adapted() const { return this->round(0) / "adapted"; }
  std::filesystem::path facility(int round, const FacilityName& name) const {
    return this->round(round) / name.str();
  }
  /// The metrics of an attempt's job.
  std::filesystem::path metrics(int round, const FacilityName& name, int attempt) const {
    return facility(round, name) / ("metrics-a" + std::to_string(attempt) + ".jsonl");
  }

 private:
  std::filesystem::path path_;
  RunName run_;
};

/// The newest run under `runs`, if any. Throws kIo when the folder cannot be listed.
std::optional<RunName> latest_run(const std::filesystem::path& runs);
/// The name after the newest run's; "0001" for the first run. Throws as latest_run().
RunName next_run(const std::filesystem::path& runs);

// --- Requests --------------------------------------------------------------------------------
//
// Users' requests to a run whose coordinator holds the journal: files in runs/0003/requests/. The
// coordinator acts on a request within a second and removes its file.

struct Request {
  enum class Kind { kCancel, kPause, kResume, kLeave, kJoin };
  Kind kind = Kind::kCancel;
  std::vector<FacilityName> facilities;  // of all kinds but kCancel
  std::string reason;                    // for users
  bool now = false;                      // of kLeave: FacilityLeft::now
};

/// Writes the request, durably. Returns the file's name.
std::string leave_request(const RunFolder& folder, const Request& request);
/// All requests with their file names, oldest first. Removes an invalid file with a warning. An
/// unreadable file stays and holds no other request back; `problem` gets the error of the last one.
/// Throws kIo when the folder is unreadable.
std::vector<std::pair<std::string, Request>> pending_requests(const RunFolder& folder,
                                                              std::string* problem = nullptr);
void remove_request(const RunFolder& folder, const std::string& name);

// --- Status file -----------------------------------------------------------------------------
//
// The current activity of each facility: runs/0003/live.json. No decision depends on it; it may be
// absent or old. The coordinator writes the file at least every 30 s: its time of modification is
// the coordinator's last sign of life.

// The progress of a training job, by the last line of its metrics.
struct TrainingProgress {
  int attempt = 0;
  int64_t step = 0, steps = 0;   // of this job
  double loss = 0;               // of the step
  double tokens_per_second = 0;  // 0: not reported
  bool operator==(const TrainingProgress&) const = default;
};
/// The object "training" of live.json and `xffl status --json`.
Json training_json(const TrainingProgress& training);

struct FacilityActivity {
  int round = 0;
  std::string activity;                           // facility::describe()
  std::string since_utc;                          // the start of this activity
  std::optional<TrainingProgress> training = {};  // of this round
};
using Activities = std::map<FacilityName, FacilityActivity>;

class RunHistory;

// Thread-safe. Best effort: a failed write is only logged. A thread of its own writes the file, a
// few times a second at most: show() never waits for the disk. With `history`, only the run's
// writer changes the file.
class StatusFile {
 public:
  /// Writes the file at least once in each `interval`.
  StatusFile(std::filesystem::path path, const Clock& clock, RunHistory* history = nullptr,
             std::chrono::milliseconds interval = std::chrono::seconds(30));
  ~StatusFile();  // removes the file: the run is no longer active

  void show(int round, const FacilityName& facility, const std::string& activity);
  void show_training(int round, const FacilityName& facility, const TrainingProgress& training);

 private:
  void write_changes(const std::stop_token& stop);

  std::filesystem::path path_;
  const Clock& clock_;
  RunHistory* const history_;
  const std::chrono::milliseconds interval_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  Activities facilities_;
  bool is_written_ = true;
  std::jthread thread_;
};

/// Empty when the file does not exist or is unreadable.
Activities read_activities(const std::filesystem::path& path);
/// The last time when the coordinator wrote the file. Empty when the file does not exist.
std::optional<Clock::UtcTime> last_sign_of_life(const std::filesystem::path& path);

}  // namespace xffl::history
