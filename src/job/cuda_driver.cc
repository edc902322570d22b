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

}  // namespace xffl::job
