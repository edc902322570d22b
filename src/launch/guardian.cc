// How it works: the guardian reads the groups to watch from a pipe whose only writer is the
// launcher. The kernel closes that end of the pipe when the launcher ends, for any reason.
#include "guardian.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "xffl/base/error.h"

namespace xffl::launch {
namespace {

struct Message {
  int rank;
  pid_t group;  // 0: released
};

// The guardian's main function, after fork: only async-signal-safe calls.
[[noreturn]] void guard(int pipe, std::vector<pid_t>& groups) {
  ::setsid();
  ::prctl(PR_SET_NAME, "xffl-guardian");
  for (int signal_number : {SIGTERM, SIGINT, SIGHUP, SIGUSR1}) ::signal(signal_number, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
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
  // Without a guardian (killed) the ranks still have PR_SET_PDEATHSIG.
}

}  // namespace xffl::launch
