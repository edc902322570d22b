// A run as TensorBoard's event files: one file in global/, and one in the folder of each facility.
//
// The bytes follow from the journal and the archived metrics alone, and an event of the run never
// changes the bytes of earlier ones. A later export therefore only appends: TensorBoard reads a
// file that grows, and expects one file per folder.
#pragma once

#include <cstdint>
#include <filesystem>

#include "xffl/history/run_folder.h"
#include "xffl/report/run_story.h"

namespace xffl::exports {

/// The most steps of one attempt in a file: longer metrics are thinned.
inline constexpr int kMaxStepsOfAttempt = 1000;

struct TensorboardFiles {
  int files = 0;
  uint64_t size_bytes = 0;      // of all files
  uint64_t appended_bytes = 0;  // by this call
};

/// Writes the published rounds of `story`, whose run is in `run`, below `to`; creates `to`. A file
/// that lacks its end, after a full disk or a crash, gets it. Throws kRejected when a file is no
/// earlier export of this run, kBusy while another process writes it, kIo.
///
/// Source: tensorboard/compat/proto/event.proto and summary.proto; the framing is TFRecord's.
TensorboardFiles write_tensorboard(const report::RunStory& story, const history::RunFolder& run,
                                   const std::filesystem::path& to);

}  // namespace xffl::exports
