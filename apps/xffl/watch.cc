#include "watch.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <span>
#include <string>

#include "credentials.h"
#include "stop_on_signal.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"
#include "xffl/status/frame.h"
#include "xffl/status/status.h"

namespace xffl {
namespace {

using SteadyClock = std::chrono::steady_clock;

void print(const std::string& text) {
  write_all(STDOUT_FILENO, std::as_bytes(std::span(text)), "standard output");
}

// Receives SIGWINCH. Threads that start later do not receive it.
class WindowChanges {
 public:
  WindowChanges() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGWINCH);
    ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
    fd_ = UniqueFd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!fd_) throw system_error("watch the window's size", errno);
  }

  // Waits until `end`, a change of the window (true) or a stop.
  bool await(SteadyClock::time_point end, const std::stop_token& stop) const {
    bool changed = false;
    while (!changed && !stop.stop_requested() && SteadyClock::now() < end) {
      pollfd wait{fd_.get(), POLLIN, 0};
      if (::poll(&wait, 1, 50) <= 0) continue;
      signalfd_siginfo info;
      while (::read(fd_.get(), &info, sizeof info) == sizeof info) changed = true;
    }
    return changed;
  }

 private:
  UniqueFd fd_;
};

// Shows frames on standard output.
class View {
 public:
  explicit View(const WatchOptions& watch)
      : is_in_place_(!watch.json && is_cursor_terminal(STDOUT_FILENO)),
        has_colours_(has_colours(STDOUT_FILENO, watch.colours)) {}

  void show(const status::Frame& frame) {
    if (shown_ && shown_->shows_same_as(frame)) return;
    if (is_in_place_ && !shown_) scroll_away();
    const bool is_first = !shown_;
    shown_ = frame;
    if (is_in_place_) return redraw();
    std::string text = is_first ? "" : "\n";
    for (const std::string& line : status::fit(frame, window(), has_colours_)) text += line + "\n";
    print(text);
  }

  void redraw() const {
    if (is_in_place_ && shown_)
      print(status::draw_in_place(status::fit(*shown_, window(), has_colours_)));
  }

 private:
  // The text on the terminal stays readable above the frame.
  static void scroll_away() { print(std::string(window_size(STDOUT_FILENO).rows, '\n')); }

  // A printed frame has all rows.
  WindowSize window() const {
    WindowSize size = window_size(STDOUT_FILENO);
    if (!is_in_place_) size.rows = 1 << 20;
    return size;
  }

  const bool is_in_place_, has_colours_;
  std::optional<status::Frame> shown_;
};

ErrorKind parse_error_kind(std::string_view name) {
  for (int kind = 0; kind <= static_cast<int>(ErrorKind::kFailed); ++kind)
    if (to_string(static_cast<ErrorKind>(kind)) == name) return static_cast<ErrorKind>(kind);
  return ErrorKind::kFailed;
}

// Throws the error that the run's last coordinator ended with.
void check_end(const status::RunStatus& status) {
  const std::string run = "run " + status.folder.filename().string();
  if (status.run_state.completed) return;
  if (status.run_state.cancelled) throw Error(ErrorKind::kFailed, run + " was cancelled");
  const auto& stopped = status.run_state.stopped;
  if (!stopped)
    throw Error(ErrorKind::kFailed, "the coordinator of " + run +
                                        " ended without a reason (killed, or the machine "
                                        "crashed): continue with `xffl run`");
  throw Error(parse_error_kind(stopped->kind), run + " stopped at " + stopped->time_utc + ": " +
                                                   log::printable(stopped->reason, 4000));
}

}  // namespace

void watch_run(const ProjectOptions& options, const WatchOptions& watch) {
  const history::RunFolder folder = options.existing_run();
  const config::Experiment experiment = experiment_of(options, folder);
  const WindowChanges changes;  // ahead of the thread of StopOnSignal
  StopOnSignal signals("leaving; the coordinator continues");
  View view(watch);
  status::RunStatus status;
  std::string trace, shown_json;
  RepeatedProblem problem;
  for (;;) {
    bool changed = false;
    try {
      const std::string now = trace_of(folder);
      if (now != trace) {
        status = status::read_status(folder.path(), experiment.rounds, status::Rounds::kNewest);
        if (!status.run_state.completed && !status.run_state.cancelled)
          status.credentials = ending_credentials(experiment);
        changed = true;
      }
      trace = now;
      problem.clear();
    } catch (const std::exception& error) {  // of a disk, or a file that is replaced
      if (trace.empty() || !may_have_coordinator(folder)) throw;
      problem.warn("the run is not read now: the next look tries again", error.what());
    }
    // A coordinator's silence shows without a change of the run.
    if (!watch.json) view.show(status::make_frame(status, SystemClock().utc()));
    if (changed && watch.json) {
      const std::string line = status::format_status_json(status, true);
      status.last_sign.reset();  // each sign of life alone is no change of the run
      const std::string compared = status::format_status_json(status, true);
      if (compared != shown_json) print(line);
      shown_json = compared;
    }
    if (status.coordinator.empty()) {
      if (watch.ends_with_status) print("\n" + status::format_status(status));
      return check_end(status);
    }
    const auto next_look = SteadyClock::now() + watch.interval;
    while (changes.await(next_look, signals.token())) view.redraw();
    if (signals.token().stop_requested())
      throw Error(ErrorKind::kCancelled, "no longer followed; the run continues");
  }
}

}  // namespace xffl
