// The run as its journal records it, and the collection of findings.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "xffl/base/error.h"
#include "xffl/config/experiment.h"
#include "xffl/history/audit.h"
#include "xffl/history/run_folder.h"
#include "xffl/history/run_history.h"
#include "xffl/verify/verify.h"

namespace xffl::verify {

using RoundAndFacility = std::pair<int, FacilityName>;

struct OpenedAttempt {
  int64_t seq = 0;
  int round = 0;
  FacilityName facility;
  int attempt = 0;
  std::string nonce;
};

// The order of a round's events, which the projection does not keep.
struct RoundOrder {
  int64_t planned = 0, frozen = 0, aggregated = 0, published = 0;  // seq; 0: absent
  std::string base_sha256;                                         // of RoundPlanned
  std::string config_sha256;                                       // at Published
  std::map<FacilityName, int64_t> accepted;                        // of the newest update
};

struct RecordedRun {
  const history::RunFolder& folder;
  std::filesystem::path project_folder;
  history::JournalAudit journal;
  history::RunState state{};       // by the events that can have happened
  std::string impossible_event{};  // the first event that cannot have happened; empty: none
  std::vector<OpenedAttempt> attempts{};
  std::map<int, RoundOrder> rounds{};
  std::map<RoundAndFacility, std::set<std::string>> scripts{};  // SHA-256 of job.sh
  bool config_changed = false;
  bool goes_on = false;
  std::optional<config::Experiment> experiment{};  // none: config.resolved.yaml is damaged

  /// The SHA-256 that the journal has for a round's models; empty: none.
  std::string global_sha256(int round) const;
  std::string master_sha256(int round) const;
  /// The path below the run's folder.
  std::string name_of(const std::filesystem::path& path) const;
  /// The reason why a file of an earlier round may be absent; empty: it must exist. `kept`: the
  /// number of newest rounds whose files the present policy keeps, 0: all.
  std::string reason_of_absence(int round, int kept, const std::string& key) const;
  int published() const { return state.done().rounds_published; }
};

/// The newest round with a model; 0: none.
int newest_model(const RecordedRun& run);

/// Reads the journal of the run and applies its events.
RecordedRun read_run(const history::RunFolder& folder, const std::filesystem::path& project_folder);

// Collects the findings of one check.
class Findings {
 public:
  Findings(std::vector<Check>& checks, std::string name, std::string content);

  void pass(int64_t subjects = 1);
  void fail(const std::string& subject, const std::string& problem);
  void skip(const std::string& reason, const std::string& subject = {});
  /// Passes when `found` equals `expected`.
  void compare(const std::string& subject, const std::string& found, const std::string& expected);
  /// Calls `body`; an error about the content of a file is a failure of `subject`.
  template <class Body>
  void guard(const std::string& subject, const Body& body);

 private:
  void fail_for(const std::string& subject, const Error& error);

  std::vector<Check>& checks_;
  const size_t index_;
};

template <class Body>
void Findings::guard(const std::string& subject, const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    fail_for(subject, error);
  }
}

void check_journal(const RecordedRun& run, std::vector<Check>& checks);
void check_config(RecordedRun& run, std::vector<Check>& checks);
void check_attempts(const RecordedRun& run, std::vector<Check>& checks);
void check_rounds(const RecordedRun& run, std::vector<Check>& checks);
void check_folders(const RecordedRun& run, const Options& options, std::vector<Check>& checks);
void check_replay(const RecordedRun& run, const Options& options, std::vector<Check>& checks);
void check_blocks(const RecordedRun& run, const Options& options, std::vector<Check>& checks);
void check_signatures(const RecordedRun& run, const Options& options, std::vector<Check>& checks);

}  // namespace xffl::verify
