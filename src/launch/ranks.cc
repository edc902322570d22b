// How it works: one loop copies output, polls the ranks and forwards signals. A rank that has
// exited stays a zombie until its process group is empty or killed. Meanwhile the kernel does not
// reuse the group's number.
#include "xffl/launch/ranks.h"

#include <arpa/inet.h>
#include <limits.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "rank_process.h"
#include "xffl/base/error.h"
#include "xffl/base/process.h"
#include "xffl/base/resources.h"

extern char** environ;

namespace xffl::launch {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kPollInterval{50};
constexpr int kMaxRanks = 4096;
constexpr size_t kPipeBytes = 64u << 10;

using Environment = std::map<std::string, std::string>;

// Ranks and other facilities' jobs compete for the CPUs of this machine. A spinning OpenMP thread
// takes a CPU from the thread that it waits for (measured: ten times slower).
void share_cpus(Environment& env, int world_size) {
  env.try_emplace("OMP_NUM_THREADS", std::to_string(std::max(1, available_cpus() / world_size)));
  const bool chosen = env.contains("GOMP_SPINCOUNT") || env.contains("KMP_BLOCKTIME");
  if (!chosen) env.try_emplace("OMP_WAIT_POLICY", "PASSIVE");
}

// A TCP port of 127.0.0.1 for the ranks' rendezvous. Ranks may load libraries for seconds before
// rank 0 listens. Until then the bound socket keeps the kernel from giving the port to another
// program. A program that sets SO_REUSEADDR, as LibTorch's store does, listens on it all the same.
class ReservedPort {
 public:
  ReservedPort() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    if (!fd_) throw system_error("make a socket", errno);
    const int yes = 1;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    void* const raw = &address;
    if (::setsockopt(fd_.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 ||
        ::bind(fd_.get(), static_cast<sockaddr*>(raw), size) != 0 ||
        ::getsockname(fd_.get(), static_cast<sockaddr*>(raw), &size) != 0)
      throw system_error("find a free port on 127.0.0.1", errno);
    number_ = ntohs(address.sin_port);
  }
  int number() const { return number_; }

 private:
  UniqueFd fd_;
  int number_ = 0;
};

Environment shared_environment(const RankSpec& spec, int port) {
  Environment env;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) env[text.substr(0, equals)] = text.substr(equals + 1);
  }
  if (spec.env.contains("VIRTUAL_ENV")) env.erase("PYTHONHOME");
  for (const char* name : {"MASTER_ADDR", "MASTER_PORT"})
    env.erase(name);  // values of an outer launch
  for (const auto& [name, value] : spec.env) env[name] = value;
  env.try_emplace("MASTER_ADDR", "127.0.0.1");
  if (!env.contains("MASTER_PORT")) env["MASTER_PORT"] = std::to_string(port);
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

// An output of this process. Other processes share the descriptor, so it stays blocking; each write
// fits into the space that poll() guarantees. No call blocks, and memory is bounded: with a slow
// reader the ranks wait.
class Sink {
 public:
  // A writable pipe takes PIPE_BUF bytes without blocking; a file takes any number.
  explicit Sink(int fd) : fd_(fd), piece_bytes_(PIPE_BUF) {
    struct stat info {};
    if (::fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) piece_bytes_ = kMaxQueueBytes;
  }

  int fd() const { return fd_; }
  bool empty() const { return queue_.empty(); }
  bool full() const { return queue_.size() - written_ >= kMaxQueueBytes; }

  void add(std::string_view text) {
    if (problem_ == EPIPE) return;
    if (problem_ != 0)
      queue_.append("\nxffl: output is missing above: " +
                    std::generic_category().message(std::exchange(problem_, 0)) + "\n");
    queue_.append(text);
  }

  // Writes one piece. The loop calls write_some() when poll() reports the descriptor writable.
  // After a failure, as of a full disk, write_some() discards the queue; after the reader has
  // closed the output, add() discards all text.
  void write_some() {
    const size_t wanted = std::min(queue_.size() - written_, piece_bytes_);
    const ssize_t n = ::write(fd_, queue_.data() + written_, wanted);
    if (n > 0) written_ += static_cast<size_t>(n);
    const bool failed = n < 0 && errno != EINTR && errno != EAGAIN;
    if (failed) problem_ = errno;
    if (failed || written_ == queue_.size()) {
      queue_.clear();
      written_ = 0;
    } else if (written_ >= kMaxQueueBytes / 2) {
      queue_.erase(0, written_);
      written_ = 0;
    }
  }

 private:
  static constexpr size_t kMaxQueueBytes = 1u << 20;

  int fd_;
  size_t piece_bytes_;
  int problem_ = 0;  // errno of the last write, when it has failed
  std::string queue_;
  size_t written_ = 0;  // bytes of queue_
};

// Splits one output of one rank into whole, prefixed lines.
class LineReader {
 public:
  LineReader(std::string prefix, Sink& sink) : prefix_(std::move(prefix)), sink_(&sink) {}

  Sink& sink() const { return *sink_; }

  void add(std::string_view bytes) {
    while (!bytes.empty()) {
      const size_t newline = bytes.find('\n');
      const size_t length = std::min({newline, bytes.size(), kMaxLineBytes - line_.size()});
      line_.append(bytes.substr(0, length));
      bytes.remove_prefix(length);
      const bool ended = !bytes.empty() && bytes.front() == '\n';
      if (ended) bytes.remove_prefix(1);
      if (ended || line_.size() == kMaxLineBytes) emit();
    }
  }

  // Emits the text after the last newline as a line.
  void finish() {
    if (!line_.empty()) emit();
  }

 private:
  static constexpr size_t kMaxLineBytes = 64u << 10;

  void emit() {
    sink_->add(prefix_ + line_ + "\n");
    line_.clear();
  }

  std::string prefix_;
  Sink* sink_;
  std::string line_;
};

// Whether two descriptors write to the same file, pipe or terminal.
bool same_output(int fd, int other) {
  struct stat a {
  }, b{};
  return ::fstat(fd, &a) == 0 && ::fstat(other, &b) == 0 && a.st_dev == b.st_dev &&
         a.st_ino == b.st_ino && a.st_rdev == b.st_rdev;
}

constexpr std::array<int, 4> kSignals = {SIGTERM, SIGINT, SIGHUP, SIGUSR1};  // forwarded to ranks

// A signal handler can use static data only.
std::array<std::atomic<unsigned>, kSignals.size()> g_arrived{};
static_assert(std::atomic<unsigned>::is_always_lock_free);

std::mutex g_mutex;
int g_num_relays = 0;
std::array<struct sigaction, kSignals.size()> g_before;

void count_signal(int signal_number) {
  for (size_t i = 0; i < kSignals.size(); ++i)
    if (kSignals[i] == signal_number) g_arrived[i].fetch_add(1);
}

// Records the signals that a launcher forwards; the destructor restores the signals' dispositions.
// Several relays may exist at a time: each relay sees every signal.
class SignalRelay {
 public:
  SignalRelay() {
    const std::lock_guard lock(g_mutex);
    for (size_t i = 0; i < kSignals.size(); ++i) seen_[i] = g_arrived[i].load();
    if (g_num_relays++ == 0) install();
  }
  ~SignalRelay() {
    const std::lock_guard lock(g_mutex);
    if (--g_num_relays == 0)
      for (size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &g_before[i], nullptr);
  }
  SignalRelay(const SignalRelay&) = delete;
  SignalRelay& operator=(const SignalRelay&) = delete;

  // Returns the signals since the last call.
  std::vector<int> take() {
    std::vector<int> result;
    for (size_t i = 0; i < kSignals.size(); ++i) {
      const unsigned arrived = g_arrived[i].load();
      result.insert(result.end(), arrived - seen_[i], kSignals[i]);
      seen_[i] = arrived;
    }
    return result;
  }

 private:
  static void install() {
    struct sigaction ours {};
    ours.sa_handler = count_signal;
    sigfillset(&ours.sa_mask);
    for (size_t i = 0; i < kSignals.size(); ++i) {
      ::sigaction(kSignals[i], nullptr, &g_before[i]);
      const bool ignored =
          (g_before[i].sa_flags & SA_SIGINFO) == 0 && g_before[i].sa_handler == SIG_IGN;
      if (!ignored) ::sigaction(kSignals[i], &ours, nullptr);
    }
  }

  std::array<unsigned, kSignals.size()> seen_{};
};

// Sets a signal's disposition; the destructor restores the previous disposition.
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

// None when the table cannot be read, as without a free file descriptor: each group may be alive.
// Without /proc, the table is empty.
std::optional<std::vector<ProcessInfo>> try_list_processes() {
  try {
    return list_processes();
  } catch (const Error& error) {
    if (error.error_number() == ENOENT) return std::vector<ProcessInfo>();
    return std::nullopt;
  }
}

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
      move_output(kPollInterval);
      forward_signals();
      if (stop_.stop_requested() && !ending_) end_all(SIGTERM);
      check_ranks();
    }
    finish_output();
    return first_failure_;
  }

 private:
  static bool alive(const Rank& rank) { return rank.state != Rank::State::kGone; }

  void start_all() {
    const Environment env = shared_environment(spec_, port_.number());
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

  // Waits at most `wait` for readable or writable descriptors, and then reads and writes.
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

  void forward_signals() {
    for (int signal_number : relay_.take()) {
      if (signal_number == SIGUSR1) {
        for (Rank& rank : ranks_)
          if (rank.state == Rank::State::kRunning) ::kill(rank.process.pid, SIGUSR1);
      } else if (!ended_by_signal_) {
        ended_by_signal_ = true;
        end_all(signal_number);
      } else {
        for (Rank& rank : ranks_) rank.kill_at = steady_clock::now();
      }
    }
  }

  void end_all(int signal_number) {
    ending_ = true;
    for (Rank& rank : ranks_)
      if (alive(rank)) request_end(rank, signal_number);
  }

  void request_end(Rank& rank, int signal_number) {
    ::kill(-rank.process.pid, signal_number);
    ::kill(-rank.process.pid, SIGCONT);  // a stopped process handles no other signal
    const milliseconds grace = ended_by_signal_ ? spec_.signal_grace : spec_.grace;
    if (!rank.kill_at) rank.kill_at = steady_clock::now() + grace;
  }

  void check_ranks() {
    for (Rank& rank : ranks_)
      if (rank.state == Rank::State::kRunning) check_exit(rank);
    if (std::none_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) {
          return rank.state == Rank::State::kExited || rank.kill_at;
        }))
      return;
    const std::optional<std::vector<ProcessInfo>> processes = try_list_processes();
    const auto now = steady_clock::now();
    for (size_t i = 0; i < ranks_.size(); ++i) {
      Rank& rank = ranks_[i];
      const bool late = rank.kill_at && now >= *rank.kill_at;
      const bool group_alive =
          !processes ||
          std::any_of(processes->begin(), processes->end(), [&](const ProcessInfo& process) {
            return process.alive() && process.group == rank.process.pid;
          });
      if (rank.state == Rank::State::kRunning && late) ::kill(-rank.process.pid, SIGKILL);
      if (rank.state != Rank::State::kExited) continue;
      if (!group_alive || late)
        end_now(i);
      else if (!rank.kill_at)
        request_end(rank, SIGTERM);  // the rest of the rank's group
    }
  }

  void check_exit(Rank& rank) {
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

  // Copies the output that is left in the ranks' pipes. Waits for a slow reader, unless a stop was
  // requested.
  void finish_output() {
    for (Rank& rank : ranks_) {
      drain(rank.process.out, rank.out);
      drain(rank.process.err, rank.err);
    }
    const auto grace_ends = steady_clock::now() + spec_.grace;
    while (!stdout_.empty() || !stderr_.empty()) {
      move_output(kPollInterval);
      forward_signals();
      const bool hurried = ending_ || stop_.stop_requested();
      if (hurried && steady_clock::now() >= grace_ends) return;
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
  ReservedPort port_;
  ScopedDisposition no_sigpipe_{SIGPIPE, SIG_IGN};  // the ranks outlive a reader
  // An inherited SIG_IGN would make the kernel discard exit codes.
  ScopedDisposition keep_zombies_{SIGCHLD, SIG_DFL};
  SignalRelay relay_;
  Guardian guardian_;
  Sink stdout_, stderr_;
  std::vector<Rank> ranks_;
  std::vector<char> block_ = std::vector<char>(kPipeBytes);
  int first_failure_ = 0;
  bool ending_ = false;
  bool ended_by_signal_ = false;
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
