#include "early_sync.h"

#include <algorithm>
#include <chrono>
#include <exception>

namespace xffl::transfer {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstPause{500};
constexpr milliseconds kLongestPause{10'000};
constexpr std::chrono::minutes kPatience{5};
constexpr int kMaxFailures = 3;  // in a row

}  // namespace

EarlySync::EarlySync(remote::Session& session, const RemotePath& part)
    : session_(session),
      part_(part),
      thread_([this](const std::stop_token& stop) { work(stop); }) {}

void EarlySync::work(const std::stop_token& stop) {
  int failures = 0;
  for (milliseconds pause = kFirstPause; failures < kMaxFailures;
       pause = std::min(2 * pause, kLongestPause)) {
    {
      std::unique_lock lock(mutex_);
      stopped_.wait_for(lock, stop, pause, [] { return false; });
    }
    if (stop.stop_requested()) return;
    try {
      // Not Session::sync(): this one ends when it is told to.
      const auto result = session_.run({"sync", "--", part_.str()}, "", kPatience, stop);
      failures = result.exit_code == 0 ? 0 : failures + 1;
    } catch (const std::exception&) {  // no shell, or a link that the upload has lost as well
      ++failures;
    }
  }
}

}  // namespace xffl::transfer
