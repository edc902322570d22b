// Child processes of this machine, started from an argument vector: no shell is involved.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

namespace xffl {

struct ProcessSpec {
  std::vector<std::string> argv;           // argv[0] is looked up in PATH
  std::map<std::string, std::string> env;  // added to this process's environment
  bool inherit_env = true;                 // false: only `env`
  std::filesystem::path cwd;               // empty: this process's
  std::string stdin_text;                  // given on stdin, which is then closed
  std::chrono::milliseconds timeout{0};    // 0: none
  size_t max_output_bytes = 16u << 20;     // per stream; more is dropped
};

struct ProcessResult {
  int exit_code = 0;       // 128 + signal when killed by one
  bool timed_out = false;  // killed by us after `timeout`
  std::string out;
  std::string err;
};

/// Runs to the end and captures both streams. A stop request or the timeout sends SIGTERM to the
/// child's process group, then SIGKILL 2 s later. Throws kNotFound when the program cannot be
/// started. A SIGCHLD that this process inherited as ignored is set to its default for good: the
/// kernel would throw exit codes away.
ProcessResult run_process(const ProcessSpec& spec, std::stop_token stop = {});

/// Starts a child in a session of its own with stdin from /dev/null and both streams appended to
/// `output`, which survives this process. Returns its process id (= process group). The caller
/// reaps it or leaves it.
pid_t start_detached(const ProcessSpec& spec, const std::filesystem::path& output);

/// The start time of a process in clock ticks since boot (/proc/PID/stat field 22): with the pid,
/// it identifies a process even after the pid is reused. Empty when there is no such process.
std::optional<uint64_t> process_start_ticks(pid_t pid);

/// For exec: pointers to the texts and a final null, valid as long as `texts` stays as it is.
std::vector<char*> exec_pointers(std::vector<std::string>& texts);
/// Waits for a forked child's exec. `pipe` is the read end of a pipe that closes on exec, to which
/// the child writes errno (an int) when exec fails. Returns it, or 0.
int exec_error(int pipe);
/// Reaps a child of this process: its exit code, or 128 + the signal that ended it. Throws kIo.
int wait_for_exit(pid_t pid);

}  // namespace xffl
