// A run as tables for spreadsheets and data frames: rounds, attempts and losses.
#pragma once

#include <filesystem>
#include <string>

#include "xffl/report/run_story.h"

namespace xffl::exports {

// Comma-separated values as in RFC 4180, with a header line. An empty field was not measured.
struct Tables {
  std::string rounds, attempts, losses;
};

/// Pure. Text of the run is printable; a text that a spreadsheet would compute as a formula begins
/// with an apostrophe.
Tables make_tables(const report::RunStory& story);

/// Replaces rounds.csv, attempts.csv and losses.csv in `to`, which is created.
void write_tables(const Tables& tables, const std::filesystem::path& to);

}  // namespace xffl::exports
