// Starts a program as N ranks on this machine, as srun does on one node of a facility.
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
  std::map<std::string, std::string> env;  // added to every rank's environment
  bool prefix_output = true;               // "[2] line"; false: ranks inherit stdout and stderr
  std::chrono::milliseconds grace{5000};   // between SIGTERM and SIGKILL when ending ranks
  /// The same after a signal to this process. Ranks may need the time to save their state.
  std::chrono::milliseconds signal_grace{25000};
};

/// Runs argv world_size times with RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
/// MASTER_ADDR=127.0.0.1 and a MASTER_PORT that no other program gets during the call (a rank that
/// listens on it must set SO_REUSEADDR, as torch and LibTorch do). Unless set, OMP_NUM_THREADS is
/// the number of CPUs of this process / ranks, and OMP_WAIT_POLICY is PASSIVE. Output lines up to
/// 64 KiB stay whole. Each rank's stdout goes to stdout, and its stderr to stderr; its stdin is
/// /dev/null. When a rank fails, the launcher sends SIGTERM to the other ranks, then SIGKILL after
/// `grace`. A stop request ends all ranks. Returns 0, else the exit code of the first rank that
/// failed (128 + signal). No process in a rank's process group survives the call, nor a SIGKILL of
/// this process.
///
/// During the call, the launcher forwards SIGTERM, SIGINT and SIGHUP to the ranks' process groups
/// and then ends the ranks as above, with `signal_grace` as the grace (a second signal: at once).
/// The launcher also forwards SIGUSR1 to the ranks. An ignored signal stays ignored. run_ranks()
/// looks argv[0] up in the ranks' PATH; with VIRTUAL_ENV in `env` the ranks get no PYTHONHOME.
/// Throws kNotFound for a missing program, kUsage for a world size outside 1..4096.
int run_ranks(const RankSpec& spec, std::stop_token stop);

/// The argument vector that runs `program`. The Python of `environment` (the variables of
/// venv_environment, or empty: python3) runs a *.py file; another program runs directly. Throws
/// kNotFound for a missing script.
std::vector<std::string> program_argv(const std::string& program,
                                      const std::map<std::string, std::string>& environment,
                                      const std::vector<std::string>& arguments);

/// The Python environment of `venv`, a folder or its bin/activate script. Returns the variables to
/// set (VIRTUAL_ENV, PATH, without PYTHONHOME). Throws kNotFound without bin/python.
std::map<std::string, std::string> venv_environment(const std::string& venv);

}  // namespace xffl::launch
