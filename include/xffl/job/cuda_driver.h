// The oldest GPU driver that runs programs of a CUDA version.
#pragma once

#include <string_view>

namespace xffl::job {

/// The first number of that driver's version for a major version of CUDA, after CUDA's release
/// notes ("minor version compatibility"); 0: not known.
int oldest_driver(int cuda_major);

/// The flavour of the bundle (scripts/package.sh) for a driver, by its first number, that is too
/// old for `cuda_major`, on nodes of the architecture `arch` ("x86_64"): "cu128" where the driver
/// runs CUDA 12, else "cpu".
std::string_view flavour_for_driver(int driver, int cuda_major, std::string_view arch);

}  // namespace xffl::job
