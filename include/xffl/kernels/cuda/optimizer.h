// AdamW over flat buffers, and the kernels of its gradients, for NVIDIA GPUs. The contract in
// block.h holds for these kernels, too.
#pragma once

#include <cstdint>

#include "xffl/kernels/cuda/launch.h"
#include "xffl/kernels/types.h"

namespace xffl::kernels {

struct AdamwNumbers {
  double learning_rate = 0, beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0;
  double gradient_factor = 1;  // multiplies gradients first: unscaling and clipping
  int64_t step = 1;            // 1 in the first step
};

/// One step of torch.optim.AdamW on float32 masters. In the same pass `compute`, if it is not null,
/// becomes the masters rounded to T (to nearest, ties to even). Gradients are stored as G and
/// moments as M: float, or (where T is Bf16) Bf16. A step computes in float32 and uses the new
/// moments before they are rounded to M.
template <class T, class G, class M>
void adamw(const Launch& on, float* master, const G* gradient, M* first_moment, M* second_moment,
           T* compute, int64_t size, const AdamwNumbers& numbers);

/// The same step on masters in two parts: a bfloat16 weight and the 16 bits that rounding took from
/// it. A master beside a weight would take 2 bytes a parameter more. The masters' bits are those of
/// adamw().
template <class G, class M>
void adamw_with_remainder(const Launch& on, Bf16* weight, uint16_t* remainder, const G* gradient,
                          M* first_moment, M* second_moment, int64_t size,
                          const AdamwNumbers& numbers);

/// The same step on the weight alone, which is rounded once, to nearest, ties to even: torch's
/// fused AdamW on bfloat16 parameters. A change below half a unit in the weight's last place is
/// lost.
template <class G, class M>
void adamw_on_weights(const Launch& on, Bf16* weight, const G* gradient, M* first_moment,
                      M* second_moment, int64_t size, const AdamwNumbers& numbers);

/// Exact for every number and infinity; a NaN stays a NaN in weight and in master. The weight is
/// the master rounded to nearest, ties away from zero: ties to even would leave 17 bits.
void split_masters(const Launch& on, const float* master, Bf16* weight, uint16_t* remainder,
                   int64_t size);
void join_masters(const Launch& on, const Bf16* weight, const uint16_t* remainder, float* master,
                  int64_t size);

/// The sum of the squares of each piece of `piece` elements, in float64; `piece` divides `size`.
template <class T>
void square_sums(const Launch& on, const T* x, double* sums, int64_t size, int64_t piece);

/// x *= factor
void scale(const Launch& on, float* x, int64_t size, float factor);

}  // namespace xffl::kernels
