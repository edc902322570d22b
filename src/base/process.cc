#include "xffl/base/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <thread>

#include "xffl/base/error.h"
#include "xffl/base/file.h"

extern char** environ;

namespace xffl {
namespace {

using std::chrono::steady_clock;

constexpr int kStartLimitMs = 60'000;  // of a program that survives this process

std::vector<std::string> environment_of(const ProcessSpec& spec) {
  std::vector<std::string> entries;
  if (spec.inherit_env)
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string text = *entry;
      if (!spec.env.contains(text.substr(0, text.find('=')))) entries.push_back(text);
    }
  for (const auto& [name, value] : spec.env) entries.push_back(name + "=" + value);
  return entries;
}

// The data of a forked child. The parent allocates the data before fork: the child may make only
// async-signal-safe calls.
struct ChildPlan {
  std::vector<std::string> argv, env;
  std::vector<char*> argv_pointers, env_pointers;
  std::string cwd;
  int in = -1, out = -1, err = -1, status = -1;
};

ChildPlan make_plan(const ProcessSpec& spec) {
  if (spec.argv.empty()) throw Error(ErrorKind::kInternal, "a process needs a program");
  ChildPlan plan;
  plan.argv = spec.argv;
  plan.env = environment_of(spec);
  plan.argv_pointers = exec_pointers(plan.argv);
  plan.env_pointers = exec_pointers(plan.env);
  plan.cwd = spec.cwd.string();
  return plan;
}

// A start that hangs must hold no lock and no pipe of this process.
void close_others(int status) {
  constexpr long kCloseRange = 436;  // of Linux 5.9; older C libraries do not know it
  const auto close_all = [](unsigned first, unsigned last) {
    if (::syscall(kCloseRange, first, last, 0u) == 0) return;
    for (unsigned fd = first; fd <= std::min(last, 4096u); ++fd) ::close(static_cast<int>(fd));
  };
  const auto kept = static_cast<unsigned>(status);
  if (kept > 3) close_all(3, kept - 1);
  close_all(kept + 1, ~0U);
}

[[noreturn]] void exec_child(const ChildPlan& plan) {
  ::setsid();  // the child survives this process and leads a process group for signals
  for (int signal_number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGCHLD, SIGQUIT, SIGUSR1, SIGUSR2})
    ::signal(signal_number, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  bool ready = ::dup2(plan.in, 0) >= 0 && ::dup2(plan.out, 1) >= 0 && ::dup2(plan.err, 2) >= 0;
  if (ready) close_others(plan.status);
  ready = ready && (plan.cwd.empty() || ::chdir(plan.cwd.c_str()) == 0);
  if (ready) ::execvpe(plan.argv_pointers[0], plan.argv_pointers.data(), plan.env_pointers.data());
  const int error = errno;
  [[maybe_unused]] const ssize_t written = ::write(plan.status, &error, sizeof error);
  ::_exit(127);
}

// Some parents start this process with SIGCHLD ignored: the kernel then reaps children and discards
// exit codes.
void reset_ignored_sigchld() {
  struct sigaction action {};
  ::sigaction(SIGCHLD, nullptr, &action);
  if (action.sa_handler == SIG_IGN || (action.sa_flags & SA_NOCLDWAIT) != 0)
    ::signal(SIGCHLD, SIG_DFL);
}

struct Child {
  pid_t pid = -1;
  UniqueFd status;  // read end of the pipe that exec closes
};

// Forks without waiting for exec. Blocked signals keep the handlers of this process from running in
// the child; exec_child() unblocks the signals.
Child fork_child(ChildPlan& plan, const std::string& name) {
  reset_ignored_sigchld();
  Pipe status = make_pipe();
  plan.status = status.write.get();
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t pid = ::fork();
  if (pid == 0) exec_child(plan);
  const int error = errno;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid < 0) throw system_error("start " + name, error);
  return {pid, std::move(status.read)};
}

int exit_code_of(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// True when the child has ended. The child stays a zombie, which keeps the kernel from reusing the
// number of its process group.
bool has_ended(pid_t pid) {
  siginfo_t info{};
  if (::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 &&
      errno != EINTR)
    throw system_error("wait for a child process", errno);
  return info.si_pid == pid;
}

// Reaps a child that has ended or got SIGKILL. SIGKILL does not end a child in state D, which waits
// for a disk or a network file system: such a child is left behind, and becomes a zombie of this
// process when its wait ends.
int reap(pid_t pid) {
  const auto deadline = steady_clock::now() + std::chrono::seconds(1);
  for (;;) {
    const bool last = steady_clock::now() >= deadline;
    if (has_ended(pid)) return wait_for_exit(pid);
    if (last) return 128 + SIGKILL;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

// Moves bytes between the child's pipes and memory until the child has closed both outputs.
class Pump {
 public:
  Pump(const ProcessSpec& spec, ProcessResult& result, UniqueFd in, UniqueFd out, UniqueFd err,
       UniqueFd status)
      : spec_(spec),
        result_(result),
        in_(std::move(in)),
        out_(std::move(out)),
        err_(std::move(err)),
        status_(std::move(status)) {
    if (spec_.stdin_text.empty()) in_ = UniqueFd();
    for (int fd : {in_.get(), out_.get(), err_.get()})
      if (fd >= 0) ::fcntl(fd, F_SETFL, O_NONBLOCK);
  }

  bool done() const { return !out_ && !err_ && !status_; }
  /// The errno of a failed exec; 0 after a successful exec, and as long as exec waits.
  int exec_problem() const { return exec_problem_; }

  void step(std::chrono::milliseconds wait) {
    pollfd fds[4] = {{in_.get(), POLLOUT, 0},
                     {out_.get(), POLLIN, 0},
                     {err_.get(), POLLIN, 0},
                     {status_.get(), POLLIN, 0}};
    if (::poll(fds, 4, static_cast<int>(wait.count())) <= 0) return;
    if (fds[0].revents != 0) feed();
    if (fds[1].revents != 0) drain(out_, result_.out);
    if (fds[2].revents != 0) drain(err_, result_.err);
    if (fds[3].revents != 0) {
      exec_problem_ = exec_error(status_.get());
      status_ = UniqueFd();
    }
  }

 private:
  void feed() {
    const ssize_t n =
        ::write(in_.get(), spec_.stdin_text.data() + fed_, spec_.stdin_text.size() - fed_);
    if (n > 0) fed_ += static_cast<size_t>(n);
    if ((n < 0 && errno != EAGAIN && errno != EINTR) || fed_ == spec_.stdin_text.size())
      in_ = UniqueFd();
  }
  void drain(UniqueFd& fd, std::string& text) {
    char block[1 << 16];  // all bytes of a full pipe
    const ssize_t n = ::read(fd.get(), block, sizeof block);
    if (n > 0)
      text.append(block, std::min(static_cast<size_t>(n), spec_.max_output_bytes - text.size()));
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) fd = UniqueFd();
  }

  const ProcessSpec& spec_;
  ProcessResult& result_;
  UniqueFd in_, out_, err_, status_;
  size_t fed_ = 0;
  int exec_problem_ = 0;
};

// A write to a child without an open stdin fails with EPIPE instead of killing this process.
void ignore_sigpipe() {
  struct sigaction action {};
  ::sigaction(SIGPIPE, nullptr, &action);
  if (action.sa_handler == SIG_DFL) ::signal(SIGPIPE, SIG_IGN);
}

}  // namespace

ProcessResult run_process(const ProcessSpec& spec, std::stop_token stop) {
  ignore_sigpipe();
  ChildPlan plan = make_plan(spec);
  Pipe in = make_pipe(), out = make_pipe(), err = make_pipe();
  plan.in = in.read.get();
  plan.out = out.write.get();
  plan.err = err.write.get();
  const auto began = steady_clock::now();
  Child child = fork_child(plan, spec.argv[0]);
  const pid_t pid = child.pid;
  in.read = UniqueFd();
  out.write = UniqueFd();
  err.write = UniqueFd();

  ProcessResult result;
  Pump pump(spec, result, std::move(in.write), std::move(out.read), std::move(err.read),
            std::move(child.status));
  std::optional<steady_clock::time_point> ended, terminated;
  for (;;) {
    if (!ended && has_ended(pid)) ended = steady_clock::now();
    if (ended && pump.done()) break;
    // A child may close its outputs and continue to run.
    if (pump.done())
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    else
      pump.step(std::chrono::milliseconds(100));
    const auto now = steady_clock::now();
    if (ended && !terminated) {  // a process that the child left behind holds an output
      if (now - *ended > std::chrono::seconds(1)) break;
      continue;
    }
    const bool late = spec.timeout.count() > 0 && now - began > spec.timeout;
    if (!terminated && (late || stop.stop_requested())) {
      result.timed_out = late;
      // The child leads no group before its first call, setsid().
      if (::kill(-pid, SIGTERM) != 0) ::kill(pid, SIGTERM);
      terminated = now;
    }
    if (terminated && now - *terminated > std::chrono::seconds(2)) break;
  }
  // The child may have left processes that ignore SIGTERM. Before reap() no other group has the
  // child's number.
  if (terminated) ::kill(-pid, SIGKILL);
  result.exit_code = reap(pid);
  if (pump.exec_problem() != 0) throw system_error("start " + spec.argv[0], pump.exec_problem());
  return result;
}

pid_t start_detached(const ProcessSpec& spec, const std::filesystem::path& output) {
  ChildPlan plan = make_plan(spec);
  UniqueFd null = open_file("/dev/null", O_RDONLY);
  UniqueFd log = open_file(output, O_WRONLY | O_CREAT | O_APPEND, 0600);
  plan.in = null.get();
  plan.out = plan.err = log.get();
  const Child child = fork_child(plan, spec.argv[0]);
  pollfd status{child.status.get(), POLLIN, 0};
  if (::poll(&status, 1, kStartLimitMs) == 0) {
    if (::kill(-child.pid, SIGKILL) != 0) ::kill(child.pid, SIGKILL);
    reap(child.pid);
    throw Error(ErrorKind::kIo, "start " + spec.argv[0] + ": no answer within a minute");
  }
  if (const int error = exec_error(child.status.get()); error != 0) {
    wait_for_exit(child.pid);
    throw system_error("start " + spec.argv[0], error);
  }
  return child.pid;
}

std::vector<char*> exec_pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& string : strings) pointers.push_back(string.data());
  pointers.push_back(nullptr);
  return pointers;
}

int exec_error(int pipe) {
  int error = 0;
  ssize_t n;
  do {
    n = ::read(pipe, &error, sizeof error);
  } while (n < 0 && errno == EINTR);
  return n == sizeof error ? error : 0;
}

int wait_for_exit(pid_t pid) {
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0)
    if (errno != EINTR) throw system_error("wait for a child process", errno);
  return exit_code_of(status);
}

std::optional<ProcessInfo> process_info(pid_t pid) {
  if (pid <= 0) return std::nullopt;
  std::string text;
  try {
    text = read_file("/proc/" + std::to_string(pid) + "/stat", 1u << 16);
  } catch (const Error& error) {
    switch (error.error_number()) {
      case ENOENT:
      case ESRCH:  // the process has ended between open and read
      case EACCES:
      case EPERM:  // another user's process on a system that hides them
        return std::nullopt;
      default:
        throw;
    }
  }
  // Field 2, the program's name, may hold any character: process_info() counts fields from the last
  // ')'.
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(name_end + 1));
  ProcessInfo info{.pid = pid};
  pid_t parent = 0;
  if (!(fields >> info.state >> parent >> info.group >> info.session)) return std::nullopt;
  std::string skipped;
  for (int index = 7; index <= 21; ++index) fields >> skipped;
  if (!(fields >> info.start_ticks)) return std::nullopt;
  return info;
}

std::vector<ProcessInfo> list_processes() {
  std::vector<ProcessInfo> processes;
  std::error_code error;
  for (std::filesystem::directory_iterator entry("/proc", error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    pid_t pid = 0;
    const auto [rest, problem] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (problem != std::errc() || rest != name.data() + name.size()) continue;
    if (const auto info = process_info(pid)) processes.push_back(*info);
  }
  if (error) throw system_error("list /proc", error.value());
  return processes;
}

std::optional<uint64_t> process_start_ticks(pid_t pid) {
  const std::optional<ProcessInfo> info = process_info(pid);
  return info && info->alive() ? std::optional(info->start_ticks) : std::nullopt;
}

}  // namespace xffl
