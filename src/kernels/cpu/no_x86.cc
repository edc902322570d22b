// Processors other than x86-64 run the portable loops, for the compiler's base target (NEON on
// ARM).
#include "cpu/x86.h"

namespace xffl::kernels {

namespace x86 {
void add_conversions(std::vector<Conversions>&) {}
}  // namespace x86

}  // namespace xffl::kernels
