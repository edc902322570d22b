// Records the signals that a launcher forwards; the destructor restores their dispositions. Several
// relays may exist at a time: each one sees every signal.
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

  /// The signals since the last call, among SIGTERM, SIGINT, SIGHUP and SIGUSR1.
  std::vector<int> take();

  static constexpr size_t kNumSignals = 4;

 private:
  std::array<unsigned, kNumSignals> seen_{};
};

}  // namespace xffl::launch
