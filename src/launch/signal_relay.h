// Notes the signals that a launcher passes on, while it exists; before and after, they mean what
// they meant. More than one at a time is fine: each sees every signal.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

namespace xffl::launch {

class SignalRelay {
 public:
  SignalRelay();
  ~SignalRelay();
  SignalRelay(const SignalRelay&) = delete;
  SignalRelay& operator=(const SignalRelay&) = delete;

  /// The signals that arrived since the last call: of SIGTERM, SIGINT, SIGHUP and SIGUSR1.
  std::vector<int> take();

  static constexpr size_t kNumSignals = 4;

 private:
  std::array<unsigned, kNumSignals> seen_{};
};

}  // namespace xffl::launch
