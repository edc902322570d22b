// Adds no kernels: processors other than x86-64 run the portable loops, which the compiler compiles
// for its base target (NEON on ARM).
#include "cpu/x86.h"
#include "xffl/kernels/cpu/bf16_product.h"

namespace xffl::kernels {

namespace x86 {
void add_conversions(std::vector<Conversions>&) {}
void add_block_kernels(std::vector<BlockKernels<float>>&) {}
void add_block_kernels(std::vector<BlockKernels<double>>&) {}
void add_block_kernels(std::vector<BlockKernels<Bf16>>&) {}
}  // namespace x86

bool has_bf16_product() { return false; }
void multiply_bf16(const Bf16Product&, const ProductPart&) {}

}  // namespace xffl::kernels
