// How it works: one loop copies output, polls the ranks and forwards signals. A rank that has
// exited stays a zombie until its process group is empty or killed: meanwhile the kernel does not
// reuse the group's number.
#include "xffl/launch/ranks.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <optional>

#include "guardian.h"
#include "output.h"
#include "rank_process.h"
#include "signal_relay.h"
#include "xffl/base/error.h"
#include "xffl/base/process.h"
#include "xffl/base/resources.h"

extern char** environ;

namespace xffl::launch {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kLook{50};
constexpr int kMaxRanks = 4096;
constexpr size_t kPipeBytes = 64u << 10;

using Environment = std::map<std::string, std::string>;

// Ranks and other facilities' jobs compete for the CPUs of this machine: a spinning OpenMP thread
// takes a CPU from the thread that it waits for (measured: ten times slower).
void share_cpus(Environment& env, int world_size) {
  env.try_emplace("OMP_NUM_THREADS", std::to_string(std::max(1, available_cpus() / world_size)));
  const bool chosen = env.contains("GOMP_SPINCOUNT") || env.contains("KMP_BLOCKTIME");
  if (!chosen) env.try_emplace("OMP_WAIT_POLICY", "PASSIVE");
}

Environment shared_environment(const RankSpec& spec) {
  Environment env;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) env[text.substr(0, equals)] = text.substr(equals + 1);
  }
  if (spec.env.contains("VIRTUAL_ENV")) env.erase("PYTHONHOME");
  for (const char* name : {"MASTER_ADDR", "MASTER_PORT"})
    env.erase(name);  // those of an outer launch
  for (const auto& [name, value] : spec.env) env[name] = value;
  env.try_emplace("MASTER_ADDR", "127.0.0.1");
  if (!env.contains("MASTER_PORT")) env["MASTER_PORT"] = std::to_string(free_port());
  share_cpus(env, spec.world_size);
  env["WORLD_SIZE"] = env["LOCAL_WORLD_SIZE"] = std::to_string(spec.world_size);
  return env;
}

std::vector<std::string> rank_environment(Environment env, int rank) {
  env["RANK"] = env["LOCAL_RANK"] = std::to_string(rank);
  std::vector<std::string> entries;
  for (const auto& [name, value] : env) entries.push_back(name + "=" + value);
  return entries;
}

// A signal's disposition during a call.
class ScopedDisposition {
 public:
  ScopedDisposition(int signal_number, sighandler_t handler) : signal_(signal_number) {
    struct sigaction action {};
    action.sa_handler = handler;
    ::sigaction(signal_, &action, &before_);
  }
  ~ScopedDisposition() { ::sigaction(signal_, &before_, nullptr); }
  ScopedDisposition(const ScopedDisposition&) = delete;
  ScopedDisposition& operator=(const ScopedDisposition&) = delete;

 private:
  int signal_;
  struct sigaction before_ {};
};

struct Rank {
  enum class State { kRunning, kExited, kGone };  // kExited: a zombie, whose group may have members
  RankProcess process;
  LineReader out, err;
  State state = State::kRunning;
  std::optional<steady_clock::time_point> kill_at;  // set with the first SIGTERM
};

class Launch {
 public:
  Launch(const RankSpec& spec, std::stop_token stop)
      : spec_(spec),
        stop_(std::move(stop)),
        guardian_(spec.world_size),
        stdout_(STDOUT_FILENO),
        stderr_(STDERR_FILENO) {}
  ~Launch() {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) end_now(rank);
  }
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  int run() {
    start_all();
    while (std::any_of(ranks_.begin(), ranks_.end(), &alive)) {
      move_output(kLook);
      hear_signals();
      if (stop_.stop_requested() && !ending_) end_all(SIGTERM);
      look_at_ranks();
    }
    finish_output();
    return first_failure_;
  }

 private:
  static bool alive(const Rank& rank) { return rank.state != Rank::State::kGone; }

  void start_all() {
    const Environment env = shared_environment(spec_);
    std::vector<std::string> argv = spec_.argv;
    const auto path = env.find("PATH");
    argv[0] =
        find_program(argv[0], path == env.end() ? "/usr/local/bin:/usr/bin:/bin" : path->second);
    Sink& errors = same_output(STDOUT_FILENO, STDERR_FILENO) ? stdout_ : stderr_;
    for (int rank = 0; rank < spec_.world_size; ++rank) {
      const std::string prefix = "[" + std::to_string(rank) + "] ";
      ranks_.push_back({start_rank(argv, rank_environment(env, rank), spec_.prefix_output),
                        LineReader(prefix, stdout_), LineReader(prefix, errors)});
      guardian_.watch(rank, ranks_.back().process.pid);
    }
  }

  // Waits at most `wait` for something to read or write, and does it.
  void move_output(milliseconds wait) {
    std::vector<pollfd> polls;
    for (Sink* sink : {&stdout_, &stderr_})
      polls.push_back({sink->empty() ? -1 : sink->fd(), POLLOUT, 0});
    for (Rank& rank : ranks_) {
      polls.push_back({rank.out.sink().full() ? -1 : rank.process.out.get(), POLLIN, 0});
      polls.push_back({rank.err.sink().full() ? -1 : rank.process.err.get(), POLLIN, 0});
    }
    if (::poll(polls.data(), polls.size(), static_cast<int>(wait.count())) <= 0) return;
    if (polls[0].revents != 0) stdout_.write_some();
    if (polls[1].revents != 0) stderr_.write_some();
    for (size_t i = 0; i < ranks_.size(); ++i) {
      Rank& rank = ranks_[i];
      if (polls[2 + 2 * i].revents != 0) read_some(rank.process.out, rank.out);
      if (polls[3 + 2 * i].revents != 0) read_some(rank.process.err, rank.err);
    }
  }

  void read_some(UniqueFd& fd, LineReader& lines) {
    const ssize_t n = ::read(fd.get(), block_.data(), block_.size());
    if (n > 0) return lines.add({block_.data(), static_cast<size_t>(n)});
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    lines.finish();
    fd = UniqueFd();
  }

  void hear_signals() {
    for (int signal_number : relay_.take()) {
      if (signal_number == SIGUSR1) {
        for (Rank& rank : ranks_)
          if (rank.state == Rank::State::kRunning) ::kill(rank.process.pid, SIGUSR1);
      } else if (!asked_by_signal_) {
        asked_by_signal_ = true;
        end_all(signal_number);
      } else {
        for (Rank& rank : ranks_) rank.kill_at = steady_clock::now();
      }
    }
  }

  void end_all(int signal_number) {
    ending_ = true;
    for (Rank& rank : ranks_)
      if (alive(rank)) ask_to_end(rank, signal_number);
  }

  void ask_to_end(Rank& rank, int signal_number) {
    ::kill(-rank.process.pid, signal_number);
    ::kill(-rank.process.pid, SIGCONT);  // a stopped process handles no other signal
    const milliseconds patience = asked_by_signal_ ? spec_.signal_grace : spec_.grace;
    if (!rank.kill_at) rank.kill_at = steady_clock::now() + patience;
  }

  void look_at_ranks() {
    for (Rank& rank : ranks_)
      if (rank.state == Rank::State::kRunning) look_for_exit(rank);
    if (std::none_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) {
          return rank.state == Rank::State::kExited || rank.kill_at;
        }))
      return;
    const std::vector<ProcessInfo> processes = list_processes();
    const auto now = steady_clock::now();
    for (size_t i = 0; i < ranks_.size(); ++i) {
      Rank& rank = ranks_[i];
      const bool late = rank.kill_at && now >= *rank.kill_at;
      const bool group_alive =
          std::any_of(processes.begin(), processes.end(), [&](const ProcessInfo& process) {
            return process.alive() && process.group == rank.process.pid;
          });
      if (rank.state == Rank::State::kRunning && late) ::kill(-rank.process.pid, SIGKILL);
      if (rank.state != Rank::State::kExited) continue;
      if (!group_alive || late)
        end_now(i);
      else if (!rank.kill_at)
        ask_to_end(rank, SIGTERM);  // the rest of the rank's group
    }
  }

  void look_for_exit(Rank& rank) {
    siginfo_t info{};
    const id_t pid = static_cast<id_t>(rank.process.pid);
    if (::waitid(P_PID, pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
    rank.state = Rank::State::kExited;
    const int code = info.si_code == CLD_EXITED ? info.si_status : 128 + info.si_status;
    if (code == 0 || first_failure_ != 0) return;
    first_failure_ = code;
    if (!ending_) end_all(SIGTERM);
  }

  void end_now(size_t index) {
    Rank& rank = ranks_[index];
    if (!alive(rank)) return;
    ::kill(-rank.process.pid, SIGKILL);
    while (::waitpid(rank.process.pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    guardian_.release(static_cast<int>(index));
    rank.state = Rank::State::kGone;
  }

  // The ranks' output is in their pipes. Waits for a slow reader, unless a stop was requested.
  void finish_output() {
    for (Rank& rank : ranks_) {
      drain(rank.process.out, rank.out);
      drain(rank.process.err, rank.err);
    }
    const auto patience_ends = steady_clock::now() + spec_.grace;
    while (!stdout_.empty() || !stderr_.empty()) {
      move_output(kLook);
      hear_signals();
      const bool hurried = ending_ || stop_.stop_requested();
      if (hurried && steady_clock::now() >= patience_ends) return;
    }
  }

  // Does not wait for the end of the pipe: a process outside the rank's group may keep it open.
  void drain(UniqueFd& fd, LineReader& lines) {
    for (size_t left = kPipeBytes; fd && left > 0;) {
      const ssize_t n = ::read(fd.get(), block_.data(), std::min(block_.size(), left));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) break;
      lines.add({block_.data(), static_cast<size_t>(n)});
      left -= static_cast<size_t>(n);
    }
    lines.finish();
    fd = UniqueFd();
  }

  const RankSpec& spec_;
  std::stop_token stop_;
  ScopedDisposition no_sigpipe_{SIGPIPE, SIG_IGN};  // the ranks outlive a reader
  ScopedDisposition keep_zombies_{SIGCHLD,
                                  SIG_DFL};  // an inherited SIG_IGN would discard exit codes
  SignalRelay relay_;
  Guardian guardian_;
  Sink stdout_, stderr_;
  std::vector<Rank> ranks_;
  std::vector<char> block_ = std::vector<char>(kPipeBytes);
  int first_failure_ = 0;
  bool ending_ = false;
  bool asked_by_signal_ = false;
};

}  // namespace

int run_ranks(const RankSpec& spec, std::stop_token stop) {
  if (spec.argv.empty() || spec.argv[0].empty())
    throw Error(ErrorKind::kUsage, "no program to run");
  if (spec.world_size < 1 || spec.world_size > kMaxRanks)
    throw Error(ErrorKind::kUsage, "the world size must be 1 to " + std::to_string(kMaxRanks) +
                                       ", found " + std::to_string(spec.world_size));
  return Launch(spec, std::move(stop)).run();
}

}  // namespace xffl::launch
