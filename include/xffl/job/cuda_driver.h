// The oldest GPU driver that runs programs of a CUDA version.
#pragma once

namespace xffl::job {

/// The first number of that driver's version for a major version of CUDA, after CUDA's release
/// notes
/// ("minor version compatibility"); 0: not known.
int oldest_driver(int cuda_major);

}  // namespace xffl::job
