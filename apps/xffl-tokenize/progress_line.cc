#include "progress_line.h"

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "xffl/base/error.h"

namespace xffl::app {
namespace {

using std::chrono::steady_clock;

// A signal handler can reach nothing but this.
volatile sig_atomic_t interrupted = 0;
void interrupt(int) { interrupted = 1; }

void on_interrupt(void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

constexpr std::chrono::milliseconds kRedraw{200};
constexpr std::chrono::seconds kNextLine{5};
constexpr size_t kBarWidth = 30;

std::string bar(double done) {
  const auto filled = static_cast<size_t>(done * static_cast<double>(kBarWidth));
  return "[" + std::string(filled, '#') + std::string(kBarWidth - filled, '.') + "]";
}

}  // namespace

ProgressLine::ProgressLine()
    : terminal_(isatty(STDERR_FILENO) == 1), start_(steady_clock::now()), last_(start_) {
  on_interrupt(interrupt);
}

ProgressLine::~ProgressLine() {
  if (drawn_ && terminal_) std::fputs("\r\033[K", stderr);
  on_interrupt(SIG_DFL);
}

double ProgressLine::seconds() const {
  return std::chrono::duration<double>(steady_clock::now() - start_).count();
}

void ProgressLine::show(const tokenize::Progress& progress) {
  if (interrupted != 0) throw Error(ErrorKind::kCancelled, "stopped; no output was written");
  const Time now = steady_clock::now();
  if (now - last_ < (terminal_ ? std::chrono::milliseconds(kRedraw) : kNextLine)) return;
  last_ = now;
  draw(progress, now);
}

void ProgressLine::draw(const tokenize::Progress& progress, Time now) {
  const double done = progress.bytes_total > 0 ? static_cast<double>(progress.bytes_done) /
                                                     static_cast<double>(progress.bytes_total)
                                               : 1.0;
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  const double rate = static_cast<double>(progress.tokens) / elapsed / 1e6;
  const double left = done > 0 ? elapsed * (1 - done) / done : 0;
  std::fprintf(stderr, "%s%s %3.0f %%  %.1f M tokens, %.2f M/s, %.0f s left%s",
               terminal_ ? "\r\033[K" : "", terminal_ ? bar(done).c_str() : "encoding:", 100 * done,
               static_cast<double>(progress.tokens) / 1e6, rate, left, terminal_ ? "" : "\n");
  std::fflush(stderr);
  drawn_ = true;
}

}  // namespace xffl::app
