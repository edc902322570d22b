// Runs a program and disturbs its N-th system call, counted over all its threads.
//
//   xffl-call-faults OUT CALL,CALL... WHEN ACTION COMMAND...
//
// CALL is a name of the table below. WHEN is N >= 1, or 0 for an undisturbed run, or "N+" for the
// N-th call and all later ones, as after a read-only remount. With the variable
// XFFL_CALL_FAULTS_BELOW only calls count that change a file below this folder. ACTION is "kill"
// (SIGKILL before the call takes effect) or the name of an error, which the call then returns
// without an effect. OUT gets "<number of calls> <thread>": the thread of the disturbed call is
// "main", "other", or "none" when the program made fewer calls.
//
// strace counts the calls of each thread on its own (when=N), so it cannot reach the third call of
// a thread while the main thread makes its third call before. This program counts them together. It
// does not follow child processes: jobs run undisturbed. x86-64 only.
#include <fcntl.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <sstream>
#include <string>

namespace {

#ifdef __x86_64__

const std::map<std::string, long> kCalls = {{"openat", SYS_openat},
                                            {"write", SYS_write},
                                            {"writev", SYS_writev},
                                            {"pwrite64", SYS_pwrite64},
                                            {"fsync", SYS_fsync},
                                            {"fdatasync", SYS_fdatasync},
                                            {"ftruncate", SYS_ftruncate},
                                            {"fallocate", SYS_fallocate},
                                            {"rename", SYS_rename},
                                            {"renameat", SYS_renameat},
                                            {"renameat2", SYS_renameat2},
                                            {"unlink", SYS_unlink},
                                            {"unlinkat", SYS_unlinkat},
                                            {"rmdir", SYS_rmdir},
                                            {"mkdir", SYS_mkdir},
                                            {"symlink", SYS_symlink},
                                            {"link", SYS_link},
                                            {"linkat", SYS_linkat},
                                            {"chmod", SYS_chmod},
                                            {"fchmod", SYS_fchmod},
                                            {"sendfile", SYS_sendfile},
                                            {"vfork", SYS_vfork},
                                            {"clone", SYS_clone},
                                            {"clone3", SYS_clone3},
                                            {"copy_file_range", SYS_copy_file_range}};

const std::map<std::string, int> kErrors = {
    {"EIO", EIO},       {"ENOSPC", ENOSPC}, {"EDQUOT", EDQUOT}, {"EROFS", EROFS},
    {"EMFILE", EMFILE}, {"ENOMEM", ENOMEM}, {"EAGAIN", EAGAIN}, {"EACCES", EACCES}};

volatile pid_t child_of_signals = 0;

class Tracer {
 public:
  Tracer(std::set<long> calls, long when, bool stays, int error)
      : calls_(std::move(calls)), when_(when), stays_(stays), error_(error) {
    if (const char* below = std::getenv("XFFL_CALL_FAULTS_BELOW")) below_ = below;
  }

  /// Returns the program's exit status as waitpid() reports it.
  int run(char** argv) {
    main_ = ::fork();
    child_of_signals = main_;
    if (main_ == 0) {
      ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
      ::raise(SIGSTOP);
      ::execvp(argv[0], argv);
      ::_exit(127);
    }
    int status = 0;
    ::waitpid(main_, &status, 0);
    ::ptrace(PTRACE_SETOPTIONS, main_, nullptr,
             PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL);
    known_.insert(main_);
    ::ptrace(PTRACE_SYSCALL, main_, nullptr, nullptr);
    for (;;) {
      const pid_t thread = ::waitpid(-1, &status, __WALL);
      if (thread < 0) return last_;
      if (WIFEXITED(status) || WIFSIGNALED(status)) {
        known_.erase(thread);
        if (thread == main_) last_ = status;
        if (known_.empty()) return last_;
      } else if (WIFSTOPPED(status)) {
        ::ptrace(PTRACE_SYSCALL, thread, nullptr, stopped(thread, status));
      }
    }
  }

  long count() const { return count_; }
  const char* disturbed() const { return disturbed_; }

 private:
  /// Returns the signal that the thread gets.
  long stopped(pid_t thread, int status) {
    const int signal = WSTOPSIG(status);
    if (signal == (SIGTRAP | 0x80)) {
      at_call(thread);
      return 0;
    }
    if (status >> 8 == (SIGTRAP | PTRACE_EVENT_EXEC << 8)) executes_ = true;
    if (signal == SIGTRAP) return 0;
    // A new thread begins with SIGSTOP.
    if (known_.insert(thread).second && signal == SIGSTOP) return 0;
    return signal;
  }

  void at_call(pid_t thread) {
    __ptrace_syscall_info info{};
    if (::ptrace(PTRACE_GET_SYSCALL_INFO, thread, sizeof info, &info) <= 0) return;
    if (info.op == PTRACE_SYSCALL_INFO_EXIT && failing_.erase(thread) > 0) {
      ::ptrace(PTRACE_POKEUSER, thread, offsetof(user, regs.rax), static_cast<long>(-error_));
    }
    if (info.op != PTRACE_SYSCALL_INFO_ENTRY || !executes_ ||
        !calls_.contains(static_cast<long>(info.entry.nr)) ||
        (!below_.empty() && !changes_file_below(thread, info)))
      return;
    if (++count_ != when_ && !(stays_ && count_ > when_)) return;
    disturbed_ = thread == main_ ? "main" : "other";
    if (error_ == 0) {
      ::kill(main_, SIGKILL);
      return;
    }
    failing_.insert(thread);
    ::ptrace(PTRACE_POKEUSER, thread, offsetof(user, regs.orig_rax), -1L);  // no such call
  }

  // A call with a file descriptor changes the descriptor's file, another one the path's.
  bool changes_file_below(pid_t thread, const __ptrace_syscall_info& info) const {
    const auto& args = info.entry.args;
    std::string path;
    switch (static_cast<long>(info.entry.nr)) {
      case SYS_openat:
        if ((args[2] & (O_ACCMODE | O_CREAT | O_TRUNC)) == O_RDONLY) return false;
        path = path_at(thread, args[0], args[1]);
        break;
      case SYS_renameat:
      case SYS_renameat2:
      case SYS_unlinkat:
        path = path_at(thread, args[0], args[1]);
        break;
      case SYS_linkat:
        path = path_at(thread, args[2], args[3]);
        break;
      case SYS_symlink:
      case SYS_link:
        path = path_at(thread, static_cast<uint64_t>(AT_FDCWD), args[1]);
        break;
      case SYS_rename:
      case SYS_unlink:
      case SYS_rmdir:
      case SYS_mkdir:
      case SYS_chmod:
        path = path_at(thread, static_cast<uint64_t>(AT_FDCWD), args[0]);
        break;
      case SYS_copy_file_range:
        path = file_of(thread, args[2]);
        break;
      default:
        path = file_of(thread, args[0]);
    }
    return path.starts_with(below_);
  }
  static std::string file_of(pid_t thread, uint64_t fd) {
    char text[4096];
    const std::string link =
        "/proc/" + std::to_string(thread) + "/fd/" + std::to_string(static_cast<int>(fd));
    const ssize_t size = ::readlink(link.c_str(), text, sizeof text);
    return size > 0 ? std::string(text, static_cast<size_t>(size)) : "";
  }
  static std::string path_at(pid_t thread, uint64_t folder, uint64_t address) {
    std::string path;
    for (;; address += sizeof(long)) {
      errno = 0;
      const long word = ::ptrace(PTRACE_PEEKDATA, thread, address, nullptr);
      if (errno != 0) return "";
      char bytes[sizeof word];
      std::memcpy(bytes, &word, sizeof word);
      const size_t size = ::strnlen(bytes, sizeof bytes);
      path.append(bytes, size);
      if (size < sizeof bytes || path.size() > 4096) break;
    }
    if (path.starts_with('/') || static_cast<int>(folder) == AT_FDCWD) return path;
    return file_of(thread, folder) + "/" + path;
  }

  const std::set<long> calls_;
  const long when_;
  const bool stays_;
  const int error_;  // 0: SIGKILL
  std::string below_;
  pid_t main_ = 0;
  std::set<pid_t> failing_;
  bool executes_ = false;  // COMMAND, no longer this program
  std::set<pid_t> known_;
  long count_ = 0;
  int last_ = 0;
  const char* disturbed_ = "none";
};

int usage(const char* problem) {
  std::fprintf(stderr, "xffl-call-faults: %s; see tests/support/call_faults.cc\n", problem);
  return 2;
}

int disturb(int argc, char** argv) {
  if (argc < 6) return usage("expected OUT CALLS WHEN ACTION COMMAND...");
  std::set<long> calls;
  std::istringstream names(argv[2]);
  for (std::string name; std::getline(names, name, ',');) {
    const auto call = kCalls.find(name);
    if (call == kCalls.end()) return usage(("unknown call " + name).c_str());
    calls.insert(call->second);
  }
  const std::string action = argv[4];
  if (action != "kill" && !kErrors.contains(action)) return usage("unknown action");
  struct sigaction forward {};
  forward.sa_handler = [](int signal) { ::kill(child_of_signals, signal); };
  forward.sa_flags = SA_RESTART;
  ::sigaction(SIGTERM, &forward, nullptr);
  const bool stays = std::string(argv[3]).ends_with('+');
  Tracer tracer(calls, std::atol(argv[3]), stays, action == "kill" ? 0 : kErrors.at(action));
  const int status = tracer.run(argv + 5);
  if (std::FILE* out = std::fopen(argv[1], "w")) {
    std::fprintf(out, "%ld %s\n", tracer.count(), tracer.disturbed());
    std::fclose(out);
  }
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

#else

int disturb(int, char**) {
  std::fprintf(stderr, "xffl-call-faults: SKIPPED: x86-64 only\n");
  return 77;
}

#endif

}  // namespace

int main(int argc, char** argv) { return disturb(argc, argv); }
