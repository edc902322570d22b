// A coordinator that stops itself at chosen records, at which a test changes its facilities.
#pragma once

#include <signal.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>

#include "e2e/testbed_project.h"

namespace xffl::test {

// A run that stops itself after each record of `kind` (XFFL_FAILPOINT). At the first stop for alba
// in round `round` the test acts, at the others the run continues at once.
class RunWithStop {
 public:
  RunWithStop(const TestbedProject& project, const std::string& kind, int round,
              std::function<void()> act)
      : run_(project.start_run({{"XFFL_FAILPOINT", "journal:stop:" + kind}})),
        thread_([this, &project, round, act = std::move(act)](const std::stop_token& stop) {
          while (!stop.stop_requested()) {
            if (!run_.await_stop(std::chrono::seconds(1))) continue;
            const history::StoredEvent last = project.events().back();
            const bool mine = last.facility.empty() || last.facility == "alba";
            if (mine && last.round == round && !acted_.exchange(true)) act();
            run_.signal(SIGCONT);
          }
        }) {}

  bool acted() const { return acted_; }
  int finish() {
    const int code = run_.finish();
    thread_ = {};
    return code;
  }

 private:
  StartedRun run_;
  std::atomic<bool> acted_ = false;
  std::jthread thread_;
};

}  // namespace xffl::test
