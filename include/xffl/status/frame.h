// The live view of a run: `xffl status --watch` and `xffl attach`.
//
// A frame has absolute times only, so that the last frame stays true on the terminal. Pure: the
// same status gives the same frame.
#pragma once

#include <string>
#include <vector>

#include "xffl/base/clock.h"
#include "xffl/base/console.h"
#include "xffl/status/status.h"

namespace xffl::status {

// A facility of the newest round.
struct FrameRow {
  std::string name;
  std::string state;   // one word: "running"
  std::string since;   // "14:03:10", or "11-21 14:03" on another day than `now`; UTC
  std::string number;  // round/attempt
  std::string job;
  std::string step;     // "12/40", of the training job
  std::string loss;     // of the last step, or the mean of an accepted update
  std::string detail;   // "(Priority), starts in 5 min"
  bool urgent = false;  // probably needs a user
  bool operator==(const FrameRow&) const = default;
};

struct Frame {
  std::string head;
  std::vector<std::string> notes;  // certificates, the reason of a stop
  std::vector<FrameRow> rows;
  std::string next;  // the next expected event
  std::string updated;
  /// Whether two frames differ in nothing but the time `updated`.
  bool shows_same_as(const Frame& other) const;
};

Frame make_frame(const RunStatus& status, Clock::UtcTime now);

/// The lines of the frame that fit in the window: at most one line less than its rows, each at most
/// one column less than its columns (a full line may wrap). Notes and rows that do not fit are
/// counted in the line "... 12 more: xffl status". The escapes of `colours` take no column.
std::vector<std::string> fit(const Frame& frame, WindowSize window, bool colours);

/// The bytes that show `lines` at the top of a terminal, in place of all earlier text there. They
/// are one synchronized update: a terminal that knows mode 2026 shows no half-drawn frame.
std::string draw_in_place(const std::vector<std::string>& lines);

}  // namespace xffl::status
