// The user's program after events of the run.
//
// runs/0001/hooks.done holds the last event for which the program has ended. A coordinator starts
// the program for each later event of the kinds in `hooks.on`: at least once, also after a kill
// between the journal's record and the program. A coordinator that has lost its run starts no
// program and leaves hooks.done alone: its successor continues from the file.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <stop_token>
#include <string>

#include "journal_follower.h"
#include "xffl/config/experiment.h"
#include "xffl/history/events.h"
#include "xffl/history/run_folder.h"

namespace xffl::observe {

/// The text that the program gets on its standard input: one line of JSON. Text of the run is
/// scrubbed and printable.
std::string format_hook_event(const std::string& run, const std::string& project,
                              const history::RecordedEvent& recorded);

/// The most events that wait for the program: older ones are dropped, with a warning.
inline constexpr size_t kMaxWaitingEvents = 1000;

class Hooks {
 public:
  /// Without hooks.done, or with one of a later event (the journal has lost its end), begins after
  /// the journal's newest event, and writes the file. `epoch`: of the coordinator in the journal.
  /// Throws kIo.
  Hooks(config::Hooks settings, const history::RunFolder& folder, std::string project,
        std::filesystem::path project_folder, int64_t epoch);

  /// Starts the program for each new event, one after the other, until none is left, `end` is
  /// requested (the running program goes on), `abort` is requested (the program is ended) or
  /// another coordinator has taken the run over.
  void run(bool certain, const std::stop_token& end, const std::stop_token& abort);

 private:
  bool is_writer() const;
  bool start(const history::RecordedEvent& recorded, const std::stop_token& abort);
  void keep(int64_t seq);
  void warn(const std::string& problem);

  const config::Hooks settings_;
  const std::string run_, project_;
  const std::filesystem::path project_folder_, journal_, done_file_;
  const int64_t epoch_;
  JournalFollower follower_;
  std::deque<history::RecordedEvent> waiting_;
  bool has_warned_ = false;
};

}  // namespace xffl::observe
