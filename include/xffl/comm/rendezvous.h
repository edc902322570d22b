// This process's rank in the job, and the address of the ranks' rendezvous, from environment
// variables.
//
// If RANK or WORLD_SIZE is set, the variables are RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and
// MASTER_PORT. Otherwise they are srun's SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, and the first
// host of SLURM_STEP_NODELIST (or SLURM_JOB_NODELIST); the port derives from SLURM_JOB_ID and
// SLURM_STEP_ID. Without Slurm's variables the world size is 1, which needs no rendezvous.
// XFFL_COMM_TIMEOUT is the number of seconds after which a rank stops waiting for another rank
// (600).
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace xffl::comm {

/// Looks up a variable; empty if the variable is not set.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;
Environment process_environment();

struct Rendezvous {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;  // index among the ranks of this machine: selects the GPU
  /// The number of ranks on this machine, which share its cores; world_size if no variable gives
  /// it.
  int local_world_size = 1;
  std::string master_address;
  int master_port = 0;
  std::chrono::seconds timeout{600};
};

/// Throws kConfig; the message names the missing or invalid variable and its value.
Rendezvous read_rendezvous(const Environment& environment);

/// The first host of Slurm's compressed list: "lrdn[0012-0015,0020],x1" -> "lrdn0012". Throws
/// kConfig.
std::string first_host(std::string_view node_list);

}  // namespace xffl::comm
