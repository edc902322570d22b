#include "signal_relay.h"

#include <signal.h>

#include <atomic>
#include <mutex>

namespace xffl::launch {
namespace {

constexpr std::array<int, SignalRelay::kNumSignals> kSignals = {SIGTERM, SIGINT, SIGHUP, SIGUSR1};

// A signal handler can use static data only.
std::array<std::atomic<unsigned>, SignalRelay::kNumSignals> g_arrived{};
static_assert(std::atomic<unsigned>::is_always_lock_free);

std::mutex g_mutex;
int g_num_relays = 0;
std::array<struct sigaction, SignalRelay::kNumSignals> g_before;

void note(int signal_number) {
  for (size_t i = 0; i < kSignals.size(); ++i)
    if (kSignals[i] == signal_number) g_arrived[i].fetch_add(1);
}

void install() {
  struct sigaction ours {};
  ours.sa_handler = note;
  sigfillset(&ours.sa_mask);
  for (size_t i = 0; i < kSignals.size(); ++i) {
    ::sigaction(kSignals[i], nullptr, &g_before[i]);
    const bool ignored =
        (g_before[i].sa_flags & SA_SIGINFO) == 0 && g_before[i].sa_handler == SIG_IGN;
    if (!ignored) ::sigaction(kSignals[i], &ours, nullptr);
  }
}

}  // namespace

SignalRelay::SignalRelay() {
  const std::lock_guard lock(g_mutex);
  for (size_t i = 0; i < kSignals.size(); ++i) seen_[i] = g_arrived[i].load();
  if (g_num_relays++ == 0) install();
}

SignalRelay::~SignalRelay() {
  const std::lock_guard lock(g_mutex);
  if (--g_num_relays == 0)
    for (size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &g_before[i], nullptr);
}

std::vector<int> SignalRelay::take() {
  std::vector<int> result;
  for (size_t i = 0; i < kSignals.size(); ++i) {
    const unsigned arrived = g_arrived[i].load();
    result.insert(result.end(), arrived - seen_[i], kSignals[i]);
    seen_[i] = arrived;
  }
  return result;
}

}  // namespace xffl::launch
