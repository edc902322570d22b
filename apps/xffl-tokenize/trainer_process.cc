#include "trainer_process.h"

#include <spawn.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "xffl/base/error.h"
#include "xffl/base/process.h"

extern char** environ;

namespace xffl::app {
namespace {

// An end that closes by itself.
class End {
 public:
  explicit End(int fd) : fd_(fd) {}
  End(const End&) = delete;
  End& operator=(const End&) = delete;
  ~End() { close(); }
  int fd() const { return fd_; }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

 private:
  int fd_;
};

// A socket pair: the child's stdin and stdout.
std::array<int, 2> make_pair() {
  std::array<int, 2> pair{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()) != 0)
    throw Error(ErrorKind::kIo, std::string("cannot make a socket pair: ") + std::strerror(errno));
  return pair;
}

pid_t spawn(const std::vector<std::string>& argv, int stdio) {
  std::vector<std::string> words = argv;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, stdio, 0);
  posix_spawn_file_actions_adddup2(&actions, stdio, 1);
  pid_t pid = 0;
  const int problem = ::posix_spawnp(&pid, words[0].c_str(), &actions, nullptr,
                                     exec_pointers(words).data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (problem != 0)
    throw Error(ErrorKind::kNotFound, words[0] + " cannot be started: " + std::strerror(problem));
  return pid;
}

// A child that has gone, or reads nothing, says so by its exit code.
void send_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t sent = ::send(fd, text.data(), text.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) break;
    text.remove_prefix(static_cast<size_t>(sent));
  }
  ::shutdown(fd, SHUT_WR);
}

void read_lines(int fd, const std::function<void(std::string_view line)>& on_line) {
  std::string pending;
  std::array<char, 4096> buffer{};
  for (;;) {
    const ssize_t count = ::read(fd, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return;
    pending.append(buffer.data(), static_cast<size_t>(count));
    for (size_t end = 0; (end = pending.find('\n')) != std::string::npos;) {
      const std::string line = pending.substr(0, end);
      pending.erase(0, end + 1);
      on_line(line);
    }
  }
}

}  // namespace

int run_lines(const std::vector<std::string>& argv, const std::string& input,
              const std::function<void(std::string_view line)>& on_line) {
  const std::array<int, 2> pair = make_pair();
  End ours(pair[0]);
  End theirs(pair[1]);
  const pid_t pid = spawn(argv, theirs.fd());
  theirs.close();
  try {
    send_all(ours.fd(), input);
    read_lines(ours.fd(), on_line);
  } catch (...) {
    ours.close();  // the child ends at its next line
    wait_for_exit(pid);
    throw;
  }
  return wait_for_exit(pid);
}

}  // namespace xffl::app
