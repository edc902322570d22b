// A federation of two facilities, run by the real `xffl run`: alba on this machine is honest, brno
// is behind a hostile SSH server with a small imitation of Slurm.
//
// A run has two rounds. Where the fault keeps brno's updates away, alba's first training waits
// until the fault has happened. Files outside the run folder are compared before and after.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "e2e/project.h"
#include "support/hostile_server.h"
#include "xffl/base/clock.h"

namespace xffl::test {

// How the coordinator reaches brno.
enum class Access {
  kShell,   // commands, and SFTP for single files
  kNoSftp,  // commands only: the server has no SFTP subsystem
  kMover,   // commands; files over another host that speaks SFTP only
};
inline constexpr Access kAccesses[] = {Access::kShell, Access::kNoSftp, Access::kMover};

// The end that a case expects for brno.
enum class Outcome {
  kAccepted,  // its updates count in both rounds
  kRejected,  // no update counts; the rounds end by themselves, before their deadline
  kTrouble,   // no update counts; each round ends by policy.quorum_grace
  kEither,    // an update may count when the fault came too late for it
};

// The faults of brno's server. A command is "sftp" or a decoded command line.
class Front {
 public:
  using Behaviour = HostileServer::Behaviour;

  /// The behaviour of channels whose command contains all `parts`.
  void on_command(const std::vector<std::string>& parts, Behaviour behaviour);
  /// Calls `answer` with SFTP requests of `type` for a path that contains `part`; READ, WRITE,
  /// READDIR and CLOSE have the path of their handle. No result: the real server answers.
  using SftpAnswer = std::function<std::optional<std::string>(const SftpPacket& request)>;
  void on_sftp(uint8_t type, const std::string& part, SftpAnswer answer);
  /// The same with the real answer, which `change` replaces.
  using SftpChange = std::function<std::string(const SftpPacket& answer)>;
  void on_sftp_answer(uint8_t type, const std::string& part, SftpChange change);
  /// Calls `tamper` with an attempt's folder once, before the coordinator sees its report.
  void on_report(std::function<void(const std::filesystem::path& attempt)> tamper);

  /// The same for the output of a failed job, before the coordinator reads it.
  void on_output_of_failure(std::function<void(const std::filesystem::path& attempt)> tamper);

  std::optional<HostileServer::Greeting> greeting;
  bool forgets_host_key = false;  // the server's host key is not the trusted one
  bool holds_job = false;         // brno's job does not end; alba's first round does not wait
  // brno's first job ends after the fault: it may else report before the coordinator asks squeue.
  bool holds_job_until_fault = false;
  std::string trainer_fault;  // see fake_trainer.cc
  /// Texts of brno's keys in xffl.yaml, such as "keep_allocation: 60s".
  std::string slurm_keys;
  std::string policy_keys;

  int hits() const { return hits_; }
  Behaviour behaviour_of(const std::string& command);
  void set_work_folder(const std::filesystem::path& folder) { work_ = folder; }
  void set_trace(bool trace) { trace_ = trace; }

 private:
  struct SftpState;
  void look_for_reports();
  struct Rule {
    uint8_t type;
    std::string part;
    SftpAnswer answer;
    SftpChange change;
  };
  std::mutex mutex_;
  std::vector<std::pair<std::vector<std::string>, Behaviour>> commands_;
  std::vector<Rule> rules_;
  std::function<void(const std::filesystem::path&)> tamper_;
  std::string tampered_name_ = "report.json";
  std::set<std::filesystem::path> tampered_;
  std::filesystem::path work_;
  std::atomic<int> hits_ = 0;
  bool trace_ = false;
};

// The moments of a round, by the journal.
struct RoundTimes {
  std::optional<Clock::UtcTime> submitted;  // the first job
  std::optional<Clock::UtcTime> quorum;     // alba's update
  std::optional<Clock::UtcTime> settled;    // the last accepted or missing update
  std::optional<Clock::UtcTime> published;
};

// The observations of one run.
struct Observed {
  int exit_code = -1;
  double seconds = 0;        // of the whole run
  bool was_stopped = false;  // by SIGTERM, some seconds after its last round was published
  double seconds_to_stop = 0;
  int64_t peak_bytes = 0;                       // the coordinator's resident memory
  std::string terminal;                         // of `xffl run`
  std::string status;                           // of `xffl status`, afterwards
  std::string journal;                          // kinds and payloads of all events
  std::map<std::string, std::string> accepted;  // "brno 1": the hash of the update
  std::map<int, std::string> models;            // the hashes of the published models
  std::map<std::string, std::string> missing;   // "brno 1": the recorded reason
  std::vector<int> published;                   // rounds, in order
  std::map<int, RoundTimes> times;              // of each round
  std::vector<std::string> trainings;
  int hits = 0;
  std::vector<std::string> outside;  // files outside the run folder that the run changed
  std::vector<std::string> special;  // links and devices in the run folder
};

// The limits of a round with each outcome, as xffl.yaml has them.
inline constexpr std::chrono::seconds kQuorumGrace{1}, kShortDeadline{8}, kLongDeadline{120};

struct RunRequest {
  Access access = Access::kShell;
  Outcome outcome = Outcome::kAccepted;
  std::string shown;  // alba's first round waits for this text in the terminal or the journal
  std::function<void(Front&)> arrange;
};

/// Runs a federation to its end.
Observed run_federation(const RunRequest& request);
/// The undisturbed run of this access; the first call runs it.
const Observed& undisturbed(Access access);

/// The first control character or broken UTF-8 sequence of `text`, with some text around it; empty
/// when a terminal can print all of it.
std::string unprintable(std::string_view text);

}  // namespace xffl::test
