// The machine and the libraries that a trainer runs with: for `xffl-train info` and every report.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "xffl/job/job_report.h"

namespace xffl::train {

/// Describes this process's machine. A value that is not known, or does not apply, is empty or 0.
/// Reads files of /proc and /sys and asks CUDA; starts no program.
job::TrainerEnvironment trainer_environment();

struct NetworkInterface {
  std::string name;
  std::vector<std::string> addresses;  // IPv4 and IPv6
  int64_t megabits_per_second = 0;     // 0: not known
};
/// The network interfaces that are up, without loopback, by name.
std::vector<NetworkInterface> network_interfaces();

/// The version of NVIDIA's kernel module in a file such as driver_version_file(): "580.65.06"; ""
/// if the file is absent or of unknown form.
std::string driver_version(const std::filesystem::path& version_file);

}  // namespace xffl::train
