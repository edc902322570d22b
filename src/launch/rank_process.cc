#include "rank_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <sstream>

#include "xffl/base/error.h"
#include "xffl/base/process.h"

namespace xffl::launch {
namespace {

namespace fs = std::filesystem;

// Async-signal-safe: child processes call the function after fork.
void unblock_all_signals() {
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

struct ChildPlan {
  std::vector<char*> argv, env;
  pid_t parent = 0;
  int in = -1, out = -1, err = -1, status = -1;
};

// Runs between fork and exec, with all signals blocked, so it makes async-signal-safe calls only.
[[noreturn]] void become(const ChildPlan& plan) {
  ::setpgid(0, 0);
  // PR_SET_PDEATHSIG applies to the forking thread, which stays in run_ranks() until all ranks have
  // ended.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != plan.parent) ::_exit(127);  // the launcher ended before the line above
  ::signal(SIGPIPE, SIG_DFL);
  for (int signal_number : {SIGTERM, SIGINT, SIGHUP, SIGUSR1}) {
    struct sigaction action {};
    ::sigaction(signal_number, nullptr, &action);
    if (action.sa_handler != SIG_IGN) ::signal(signal_number, SIG_DFL);
  }
  unblock_all_signals();
  const bool ready = ::dup2(plan.in, 0) >= 0 && (plan.out < 0 || ::dup2(plan.out, 1) >= 0) &&
                     (plan.err < 0 || ::dup2(plan.err, 2) >= 0);
  if (ready) ::execvpe(plan.argv[0], plan.argv.data(), plan.env.data());
  const int problem = errno;
  [[maybe_unused]] const ssize_t sent = ::write(plan.status, &problem, sizeof problem);
  ::_exit(127);
}

pid_t fork_with_signals_blocked(const ChildPlan& plan) {
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t pid = ::fork();
  if (pid == 0) become(plan);
  const int problem = errno;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = problem;
  return pid;
}

// How the guardian works: the guardian reads the groups to watch from a pipe whose only writer is
// the launcher. The kernel closes the launcher's end of the pipe when the launcher ends, for any
// reason.
struct Message {
  int rank;
  pid_t group;  // 0: released
};

// The guardian's main function. It runs after fork, so it makes async-signal-safe calls only.
[[noreturn]] void guard(int pipe, std::vector<pid_t>& groups) {
  ::setsid();
  ::prctl(PR_SET_NAME, "xffl-guardian");
  for (int signal_number : {SIGTERM, SIGINT, SIGHUP, SIGUSR1}) ::signal(signal_number, SIG_DFL);
  unblock_all_signals();
  // Closes the pipe's write end, and outputs whose readers wait for their end.
  ::dup2(pipe, 0);
  if (::close_range(1, ~0U, 0) != 0)
    for (int fd = 1; fd < 4096; ++fd) ::close(fd);
  Message message;
  for (;;) {
    const ssize_t n = ::read(0, &message, sizeof message);
    if (n == sizeof message)
      groups[static_cast<size_t>(message.rank)] = message.group;
    else if (n >= 0 || errno != EINTR)
      break;
  }
  for (pid_t group : groups)
    if (group > 1) ::kill(-group, SIGKILL);
  ::_exit(0);
}

}  // namespace

RankProcess start_rank(std::vector<std::string> argv, std::vector<std::string> env, bool capture) {
  ChildPlan plan{.argv = exec_pointers(argv), .env = exec_pointers(env), .parent = ::getpid()};
  const UniqueFd null = open_file("/dev/null", O_RDONLY);
  plan.in = null.get();
  Pipe status = make_pipe(), out, err;
  plan.status = status.write.get();
  if (capture) {
    out = make_pipe();
    err = make_pipe();
    plan.out = out.write.get();
    plan.err = err.write.get();
    ::fcntl(out.read.get(), F_SETFL, O_NONBLOCK);
    ::fcntl(err.read.get(), F_SETFL, O_NONBLOCK);
  }
  const pid_t pid = fork_with_signals_blocked(plan);
  if (pid < 0) throw system_error("start " + argv[0], errno);
  ::setpgid(pid, pid);  // the child makes the same call: the first call wins
  status.write = UniqueFd();
  if (const int problem = exec_error(status.read.get()); problem != 0) {
    wait_for_exit(pid);
    throw system_error("start " + argv[0], problem);
  }
  return {pid, std::move(out.read), std::move(err.read)};
}

std::string find_program(const std::string& program, const std::string& path) {
  if (program.find('/') != std::string::npos) return program;
  std::istringstream folders(path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const fs::path candidate = fs::path(folder.empty() ? "." : folder) / program;
    std::error_code ignored;
    if (fs::is_regular_file(candidate, ignored) && ::access(candidate.c_str(), X_OK) == 0)
      return candidate.string();
  }
  throw Error(ErrorKind::kNotFound,
              "program '" + program + "' was not found in PATH (" + path + ")");
}

Guardian::Guardian(int num_ranks) {
  std::vector<pid_t> groups(static_cast<size_t>(num_ranks), 0);
  Pipe pipe = make_pipe();
  pipe_ = std::move(pipe.write);
  pid_ = ::fork();
  if (pid_ < 0) throw system_error("start the ranks' guardian", errno);
  if (pid_ == 0) guard(pipe.read.get(), groups);
}

Guardian::~Guardian() {
  pipe_ = UniqueFd();
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Guardian::send(int rank, pid_t group) {
  const Message message{rank, group};
  ssize_t n;
  do {
    n = ::write(pipe_.get(), &message, sizeof message);
  } while (n < 0 && errno == EINTR);
  // If the guardian was killed, PR_SET_PDEATHSIG still ends the ranks.
}

}  // namespace xffl::launch
