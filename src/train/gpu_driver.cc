#include "xffl/train/gpu_driver.h"

#include <sys/utsname.h>

#include <cstdlib>
#include <fstream>
#include <regex>

#include "xffl/job/cuda_driver.h"

namespace xffl::train {
namespace {

std::string architecture() {
  utsname machine{};
  return ::uname(&machine) == 0 ? machine.machine : "";
}

}  // namespace

std::filesystem::path driver_version_file() {
  const char* other = std::getenv("XFFL_DRIVER_VERSION_FILE");
  return other != nullptr ? other : "/proc/driver/nvidia/version";
}

std::string driver_problem(int cuda_version, const std::filesystem::path& version_file) {
  const int oldest = job::oldest_driver(cuda_version / 1000);
  std::string text(4096, '\0');
  std::ifstream file(version_file, std::ios::binary);
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  // "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.274.02  Mon Sep 15 ..."
  static const std::regex kVersion(
      "NVRM version:[^\n]{0,200}?\\s([0-9]{3,5})((\\.[0-9]{1,5}){1,3})\\s");
  std::smatch match;
  if (!std::regex_search(text, match, kVersion) || std::stoi(match[1]) >= oldest) return "";
  const std::string cuda =
      std::to_string(cuda_version / 1000) + "." + std::to_string(cuda_version % 1000 / 10);
  return "this node's GPU driver is " + match.str(1) + match.str(2) +
         ", and this xffl-train (CUDA " + cuda + ") needs " + std::to_string(oldest) +
         " or newer: set facilities.F.cuda_compat in xffl.yaml to the site's folder of CUDA's "
         "forward-compatibility libraries (with libcuda.so.1, such as .../cuda/" +
         cuda + "/compat of NVIDIA's HPC SDK), or use the bundle of the flavour " +
         std::string(job::flavour_for_driver(std::stoi(match[1]), architecture())) + " there";
}

}  // namespace xffl::train
