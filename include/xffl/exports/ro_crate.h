// The provenance of a run as an RO-Crate: which training made which model from which models.
#pragma once

#include <filesystem>
#include <string>

#include "xffl/report/run_story.h"

namespace xffl::exports {

struct RoCrate {
  std::string license;            // a web address, or an SPDX identifier
  bool names_facilities = false;  // else "facility 1", ..., and no reasons of failures
};

/// ro-crate-metadata.json of a Process Run Crate: an action for each ended attempt and for each
/// mean, the models and updates with their hashes. Metadata only: no file of the run, and nothing
/// of the journal's secret or of the attempts' nonces. Pure.
///
/// Source: w3id.org/ro/crate/1.1, w3id.org/ro/wfrun/process/0.5.
std::string format_ro_crate(const report::RunStory& story, const RoCrate& crate);

/// Writes ro-crate-metadata.json in `to`, which is created.
void write_ro_crate(const std::string& text, const std::filesystem::path& to);

}  // namespace xffl::exports
