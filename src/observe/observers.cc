#include "xffl/observe/observers.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "hooks.h"
#include "journal_follower.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/exports/prometheus.h"
#include "xffl/history/work_files.h"

namespace xffl::observe {
namespace {

using std::chrono::milliseconds;
using SteadyClock = std::chrono::steady_clock;

constexpr milliseconds kPatienceAfterStop{4000};

// The run's figures, kept up to date in a file.
class PrometheusFile {
 public:
  PrometheusFile(const Settings& settings, const history::RunFolder& folder, int64_t epoch)
      : settings_(settings),
        run_(folder.run().str()),
        journal_(folder.journal()),
        epoch_(epoch),
        follower_(journal_) {}

  void look(bool is_last) {
    const auto now = SteadyClock::now();
    const milliseconds pause = is_last ? milliseconds(0) : settings_.write_interval;
    if (written_ && now - *written_ < pause) return;
    follower_.read(
        [&](const history::StoredEvent& stored) { figures_.add(history::decode(stored)); },
        is_last);
    const bool is_new = follower_.seq() != shown_seq_;
    if (written_ && !is_new && !is_last && now - *written_ < settings_.heartbeat) return;
    written_ = now;  // also after a failure: the next try has the same pause
    shown_seq_ = follower_.seq();
    exports::PrometheusContext context{.run = run_,
                                       .version = settings_.version,
                                       .has_coordinator = !is_last,
                                       .rounds_planned = settings_.rounds_planned,
                                       .now = SystemClock().utc()};
    if (settings_.credentials) context.credentials = settings_.credentials();
    const std::string text = figures_.format(context);
    if (history::is_newest_epoch(journal_, epoch_))
      exports::write_prometheus(settings_.observe.prometheus, text);
  }

 private:
  const Settings& settings_;
  const std::string run_;
  const std::filesystem::path journal_;
  const int64_t epoch_;
  JournalFollower follower_;
  exports::RunFigures figures_;
  int64_t shown_seq_ = 0;  // the last event in the file
  std::optional<SteadyClock::time_point> written_;
};

// Logs the first error of `body` as a warning.
template <class Body>
void guarded(bool& has_warned, const char* text, Body&& body) {
  std::string problem;
  try {
    return body();
  } catch (const std::exception& error) {
    problem = error.what();
  }
  if (std::exchange(has_warned, true))
    log::debug(text, {{"problem", problem}});
  else
    log::warning(text, {{"problem", problem}});
}

}  // namespace

struct Observers::State {
  const Settings settings;
  const history::RunFolder folder;
  const std::stop_token stop;
  std::stop_source end{}, abort{};  // of the threads: finish; leave everything
  std::mutex mutex{};
  std::condition_variable_any changed{};
  int running = 0;    // threads of hooks
  int64_t epoch = 0;  // of this coordinator, once it holds the run
  std::jthread hooks{}, prometheus{};

  void pause() {
    std::unique_lock lock(mutex);
    changed.wait_for(lock, end.get_token(), settings.look_interval, [] { return false; });
  }

  void follow_with_hooks(Hooks& runner) {
    bool has_warned = false;
    const auto look = [&](bool is_last) {
      guarded(has_warned, "hooks are delayed", [&] {
        runner.run(is_last, is_last ? std::stop_token() : end.get_token(), abort.get_token());
      });
    };
    while (!end.stop_requested()) {
      look(false);
      pause();
    }
    look(true);
    const std::lock_guard lock(mutex);
    --running;
    changed.notify_all();
  }

  void follow_with_file() {
    bool has_warned = false;
    PrometheusFile file(settings, folder, epoch);
    const auto look = [&](bool is_last) {
      guarded(has_warned, "the file for Prometheus is not written: the run goes on",
              [&] { file.look(is_last); });
    };
    while (!end.stop_requested()) {
      look(false);
      pause();
    }
    look(true);
  }
};

Observers::Observers(Settings settings, history::RunFolder folder, std::stop_token stop)
    : state_(new State{std::move(settings), std::move(folder), std::move(stop)}) {}

void Observers::begin(int64_t epoch) noexcept {
  State& state = *state_;
  state.epoch = epoch;
  bool has_warned = false;
  if (!state.settings.hooks.command.empty())
    guarded(has_warned, "hooks are off", [&] {
      auto runner =
          std::make_shared<Hooks>(state.settings.hooks, state.folder, state.settings.project,
                                  state.settings.project_folder, epoch);
      state.hooks = std::jthread([&state, runner] { state.follow_with_hooks(*runner); });
      const std::lock_guard lock(state.mutex);
      ++state.running;
    });
  if (!state.settings.observe.prometheus.empty())
    guarded(has_warned, "the file for Prometheus is not written: the run goes on",
            [&] { state.prometheus = std::jthread([&state] { state.follow_with_file(); }); });
}

Observers::~Observers() {
  State& state = *state_;
  state.end.request_stop();
  auto deadline = SteadyClock::now() + 2 * state.settings.hooks.timeout;
  std::unique_lock lock(state.mutex);
  while (state.running > 0 && SteadyClock::now() < deadline) {
    if (state.stop.stop_requested())
      deadline = std::min(deadline, SteadyClock::now() + kPatienceAfterStop);
    state.changed.wait_for(lock, milliseconds(50));
  }
  lock.unlock();
  state.abort.request_stop();
}

}  // namespace xffl::observe
