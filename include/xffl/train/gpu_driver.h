// The GPU driver of this machine: whether it can run the CUDA version of this build.
//
// CUDA's own sign of an old driver is a machine without GPUs, on which a job would train with its
// CPUs.
#pragma once

#include <filesystem>
#include <string>

namespace xffl::train {

/// The file in which NVIDIA's kernel module names its version; the environment variable
/// XFFL_DRIVER_VERSION_FILE, for tests, names another file. nvidia-smi hangs on nodes with a broken
/// GPU; the file does not.
std::filesystem::path driver_version_file();

/// The reason why the driver is too old for `cuda_version` (CUDA's number, such as 13000), with the
/// remedies; "" for a new enough driver, a machine without the file, a file of unknown form and
/// `cuda_version` 0. Reads at most 4 KiB. The
/// oldest drivers: CUDA's release notes, "minor version compatibility".
std::string driver_problem(int cuda_version, const std::filesystem::path& version_file);

}  // namespace xffl::train
