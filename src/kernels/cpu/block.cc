// The loops for the compiler's base target, and the list of all sets.
#include "xffl/kernels/cpu/block.h"

#include "cpu/block_loops.h"
#include "cpu/x86.h"

namespace xffl::kernels {
namespace {

// A function for each type, not a template: the compiler would instantiate a template's lambdas
// once, for one target.
void fill_portable(BlockKernels<float>& set) { set = XFFL_BLOCK_KERNELS(float); }
void fill_portable(BlockKernels<double>& set) { set = XFFL_BLOCK_KERNELS(double); }
void fill_portable(BlockKernels<Bf16>& set) { set = XFFL_BLOCK_KERNELS(Bf16); }

template <class T>
std::vector<BlockKernels<T>> supported_sets() {
  std::vector<BlockKernels<T>> sets(1);
  fill_portable(sets.front());
  x86::add_block_kernels(sets);
  return sets;
}

}  // namespace

template <class T>
const std::vector<BlockKernels<T>>& all_block_kernels() {
  static const std::vector<BlockKernels<T>> sets = supported_sets<T>();
  return sets;
}

template const std::vector<BlockKernels<float>>& all_block_kernels<float>();
template const std::vector<BlockKernels<double>>& all_block_kernels<double>();
template const std::vector<BlockKernels<Bf16>>& all_block_kernels<Bf16>();

int64_t attention_scratch_size(const AttentionShape& shape) {
  const AttentionScratch size(shape);
  return 7 * size.matrix() + 4 * size.scores() + kAttentionBlock * size.width;
}

}  // namespace xffl::kernels
