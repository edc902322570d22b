// The oldest GPU driver that runs programs of a CUDA version.
#pragma once

#include <string_view>

namespace xffl::job {

/// The first number of that driver's version for a major version of CUDA, after CUDA's release
/// notes ("minor version compatibility"); 0: not known.
int oldest_driver(int cuda_major);

/// The flavour of the bundle (scripts/package.sh) for a driver, by its first number, on nodes of
/// the architecture `arch` ("x86_64"): "cu13", "cu128", or "cpu" when the driver is too old for
/// both.
std::string_view flavour_for_driver(int driver, std::string_view arch);

}  // namespace xffl::job
