#include "xffl/job/cuda_driver.h"

namespace xffl::job {

int oldest_driver(int cuda_major) {
  switch (cuda_major) {
    case 11:
      return 450;
    case 12:
      return 525;
    case 13:
      return 580;
    default:
      return 0;
  }
}

std::string_view flavour_for_driver(int driver, std::string_view arch) {
  if (driver >= oldest_driver(13)) return "cu13";
  // LibTorch for CUDA 12 exists for x86-64 only.
  return driver >= oldest_driver(12) && arch == "x86_64" ? "cu128" : "cpu";
}

}  // namespace xffl::job
