// Progress on stderr: a bar that redraws on a terminal, a line every few seconds elsewhere.
#pragma once

#include <chrono>

#include "xffl/tokenize/corpus.h"

namespace xffl::app {

/// While it lives, Ctrl-C makes the next show() throw kCancelled instead of ending the process.
class ProgressLine {
 public:
  ProgressLine();
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void show(const tokenize::Progress& progress);
  double seconds() const;

 private:
  using Time = std::chrono::steady_clock::time_point;
  void draw(const tokenize::Progress& progress, Time now);

  bool terminal_;
  bool drawn_ = false;
  Time start_;
  Time last_;
};

}  // namespace xffl::app
