// The facts that the job of `xffl doctor --job` finds at a facility. The texts come from the
// facility and are hostile: the parsers bound sizes and numbers, and skip unknown lines.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "xffl/job/check_report.h"

namespace xffl::trial {

inline constexpr uint64_t kMaxNodeFacts = 64 << 10, kMaxNcclLog = 1 << 20;

enum class PathState { kOk, kMissing, kUnreadable, kHung };

// out/node-<rank>.txt: the facts of a node, by the rank that wrote them.
struct NodeFacts {
  std::string host, arch, glibc;
  std::string driver;                // of NVIDIA; empty: none
  std::string amd_driver;            // "amdgpu 6.7.0", or without a version; empty: none
  int gpus = 0;                      // that the driver lists
  int cpus = 0;                      // that the job may use
  int64_t memory = 0;                // bytes of the node
  int64_t available = 0;             // bytes of memory
  int64_t free = -1;                 // bytes in the work folder; -1: not known
  double fabric_gbits = 0;           // sum of the rates of high-speed network ports
  std::vector<std::string> fabrics;  // "mlx5_0", "cxi0"
  std::map<int, PathState> paths;    // by their number in paths.txt
  std::vector<std::string> hung;     // other probes without an end: "driver"
  bool complete = false;
};
NodeFacts parse_node_facts(std::string_view text);

// NCCL's own log of one rank.
struct NcclLog {
  std::string network;         // "IB", "Socket", "AWS Libfabric"; empty: not in the log
  std::string version;         // "2.28.9+cuda13.0"
  std::string plugin_problem;  // the line about a plug-in that was not loaded
};
NcclLog parse_nccl_log(std::string_view text);

struct Found {
  std::vector<NodeFacts> nodes;
  std::vector<job::RankCheck> ranks;
  std::optional<job::CheckReport> report;
  std::vector<NcclLog> nccl;
  std::vector<std::string> unreadable;  // files that the parsers rejected, with the reason
  std::string output;                   // the end of the job's output
};

}  // namespace xffl::trial
