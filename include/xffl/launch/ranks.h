// Starts a program as N ranks on this machine: what srun does at a facility, for one node.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <stop_token>
#include <string>
#include <vector>

namespace xffl::launch {

struct RankSpec {
  std::vector<std::string> argv;
  int world_size = 1;
  std::map<std::string, std::string> env;  // added for every rank
  bool prefix_output = true;               // "[2] line"; false: ranks inherit stdout and stderr
  std::chrono::milliseconds grace{5000};   // between SIGTERM and SIGKILL when ending ranks
  /// The same when a signal to this process ended them: a rank may have something to save.
  std::chrono::milliseconds signal_grace{25000};
};

/// Runs argv world_size times with RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
/// MASTER_ADDR=127.0.0.1 and a free MASTER_PORT. Unless they are set, OMP_NUM_THREADS is the CPUs
/// that this process may use / ranks, and OMP_WAIT_POLICY is PASSIVE. Output lines are never torn
/// (but longer than 64 KiB); each rank's stdout goes to stdout, stderr to stderr, stdin is
/// /dev/null. When a rank fails, the others get SIGTERM, then SIGKILL after `grace`. A stop request
/// ends all. Returns 0, else the exit code of the first rank that failed (128 + signal). Nothing
/// that a rank started in its process group survives the call, nor the sudden end of this process
/// (SIGKILL).
///
/// During the call, SIGTERM, SIGINT and SIGHUP are passed on to the ranks' process groups and end
/// them as above, after `signal_grace` (a second one at once); SIGUSR1 is passed on to the ranks. A
/// signal that was ignored stays so. argv[0] is looked up in the PATH that the ranks get; with
/// VIRTUAL_ENV in `env` they get no PYTHONHOME. Throws kNotFound when there is no such program,
/// kUsage for a world size outside 1..4096.
int run_ranks(const RankSpec& spec, std::stop_token stop);

/// A TCP port that was free on 127.0.0.1 a moment ago.
int free_port();

/// The argument vector that runs `program`: a *.py file by the Python of `environment` (of
/// venv_environment, or empty: python3), anything else by itself. Throws kNotFound when there is no
/// such script.
std::vector<std::string> program_argv(const std::string& program,
                                      const std::map<std::string, std::string>& environment,
                                      const std::vector<std::string>& arguments);

/// Python environment for `venv`: a folder or its bin/activate script. Returns the variables to set
/// (VIRTUAL_ENV, PATH, without PYTHONHOME). Throws kNotFound when there is no bin/python in it.
std::map<std::string, std::string> venv_environment(const std::string& venv);

}  // namespace xffl::launch
