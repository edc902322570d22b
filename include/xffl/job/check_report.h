// The files that `xffl-train check` writes for `xffl doctor --job`.
//
//   out/rank-3.json   a rank's facts, written before it meets the other ranks
//   out/check.part.json  what the ranks found together so far; rank 0 replaces it after each part
//   out/check.json    the same at the end: complete, or with the problem of the part that failed
//   out/nccl-0.log    NCCL's own log of the first rank of each machine
//
// The files come from the facility and are hostile until checked: the parsers bound every number
// and every text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace xffl::job {

// Names below the job's folder.
inline constexpr std::string_view kCheckConfig = "config/config.json";  // of the model, pushed
inline constexpr std::string_view kCheckReport = "out/check.json";
inline constexpr std::string_view kCheckProgress = "out/check.part.json";
// The ranks wait for the warning signal while this file exists.
inline constexpr std::string_view kAwaitsSignal = "out/awaits-signal";
inline constexpr uint64_t kMaxCheckBytes = 64 << 10;

std::string rank_check_file(int rank);  // "out/rank-3.json"
std::string nccl_log_file(int rank);    // "out/nccl-3.log"

// A token shard as a rank reads it.
struct CheckedShard {
  std::string path;
  int64_t vocab_size = 0;
  int64_t sequence_length = 0;
  int64_t sequences = 0;
  std::string problem;  // why it is not readable; the numbers are then 0
  bool operator==(const CheckedShard&) const = default;
};

struct RankCheck {
  int rank = 0;
  std::string host;
  std::string trainer;  // "xffl-train 0.1.0 (torch 2.11.0)"
  std::string cuda;     // the toolkit that the trainer was built with, "13.0"; empty: for CPUs
  int visible_gpus = 0;
  std::string device;        // "cpu", "cuda:0"; empty with a problem
  std::string gpu;           // name; empty on a CPU
  int64_t memory_bytes = 0;  // of the GPU; available memory on a CPU
  int threads = 0;
  double product_tflops = 0;  // of a bf16 product
  std::string problem;        // of the device or the product
  // In a file at most 200; of more, those of another vocabulary, length or problem come first.
  std::vector<CheckedShard> data;
  bool operator==(const RankCheck&) const = default;
};

struct CheckReport {
  std::string backend;  // "single", "gloo", "nccl"
  int ranks = 0;
  int nodes = 0;
  // An all-reduce over all ranks; seconds of one call, 0: not measured.
  int64_t all_reduce_bytes = 0;
  double all_reduce_seconds = 0;
  // Ranks that got the warning signal; -1: not tested.
  int signalled_ranks = -1;
  // Training steps of the job's configuration, after one that warms up; 0: not measured.
  double model_seconds = 0;  // to make the model with random weights
  double step_seconds = 0;
  double step_tokens = 0;
  int64_t peak_memory_bytes = 0;  // of the largest rank
  std::string part;               // the part in progress, or the one that failed
  std::string problem;            // of `part`
  bool complete = false;
  bool operator==(const CheckReport&) const = default;
};

std::string format_rank_check(const RankCheck& check);
std::string format_check_report(const CheckReport& report);
/// Throw kCorrupt, kUnsupported, naming `origin` and the key.
RankCheck parse_rank_check(std::string_view json, std::string_view origin);
CheckReport parse_check_report(std::string_view json, std::string_view origin);

}  // namespace xffl::job
