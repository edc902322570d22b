// Child processes on this machine, started from an argument vector without a shell.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

namespace xffl {

struct ProcessSpec {
  std::vector<std::string> argv;           // exec looks argv[0] up in PATH
  std::map<std::string, std::string> env;  // added to this process's environment
  bool inherit_env = true;                 // false: only `env`
  std::filesystem::path cwd;               // empty: the folder of this process
  std::string stdin_text;                  // the child's whole stdin
  std::chrono::milliseconds timeout{0};    // 0: no time-out
  size_t max_output_bytes = 16u << 20;     // per stream; run_process drops the rest
};

struct ProcessResult {
  int exit_code = 0;       // 128 + signal number when killed by a signal
  bool timed_out = false;  // run_process killed the child after `timeout`
  std::string out;
  std::string err;
};

/// Runs the child to its end and captures both streams, at most 1 s longer when a process that the
/// child left behind holds them open. On a stop request or time-out, also while the start of the
/// program hangs, run_process() sends SIGTERM to the child's process group, and SIGKILL 2 s later,
/// or as soon as the child has ended and no process holds a stream open. It leaves a child behind
/// that does not end within 1 s of SIGKILL, as in state D. Throws kNotFound for a missing program,
/// kIo for any other failure to start. Permanently resets an ignored SIGCHLD to the default: while
/// a process ignores SIGCHLD, the kernel discards exit codes.
ProcessResult run_process(const ProcessSpec& spec, std::stop_token stop = {});

/// Starts a child that survives this process: in its own session, with stdin from /dev/null and
/// both streams appended to `output`. Returns the child's process id, which is also its process
/// group id. The caller may reap the child. Throws as run_process(), and kIo when the program has
/// not started after a minute.
pid_t start_detached(const ProcessSpec& spec, const std::filesystem::path& output);

/// A process of this machine, from /proc/PID/stat.
struct ProcessInfo {
  pid_t pid = 0;
  char state = '?';  // 'R', 'S', 'D', 'T', 'Z', ...
  pid_t group = 0;
  pid_t session = 0;
  // Clock ticks from boot to the start of the process. The pid and the start ticks identify a
  // process even after the kernel has reused the pid.
  uint64_t start_ticks = 0;

  bool alive() const { return state != 'Z' && state != 'X'; }
};

/// A process by its id, zombies included; empty when the process does not exist or is hidden from
/// this user. Throws kIo for any other failure, as without a free file descriptor: the process may
/// exist.
std::optional<ProcessInfo> process_info(pid_t pid);
/// The start_ticks of a living process (no zombie). Throws as process_info().
std::optional<uint64_t> process_start_ticks(pid_t pid);
/// All processes that this process may see, zombies included. Costs a few milliseconds. Throws kIo.
std::vector<ProcessInfo> list_processes();

/// The arguments of exec: pointers to the strings and a final null, valid until `strings` changes.
std::vector<char*> exec_pointers(std::vector<std::string>& strings);
/// Waits for a forked child's exec. `pipe` is the read end of a close-on-exec pipe; the child
/// writes errno (an int) to the pipe when exec fails. Returns the errno of the child, or 0 after a
/// successful exec.
int exec_error(int pipe);
/// Reaps a child of this process; returns its exit code, or 128 + signal number. Throws kIo.
int wait_for_exit(pid_t pid);

}  // namespace xffl
