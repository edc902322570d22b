// The vocabulary projection and the cross-entropy together, chunk by chunk: the logits of all
// positions never exist.
//
// N positions, D hidden, V vocabulary. A label of kIgnoreLabel is no target. Softmax in float32
// over logits in the dtype of x, as Hugging Face computes it.
#pragma once

#include <ATen/core/Tensor.h>

#include "xffl/llama/phase.h"
#include "xffl/llama/weight.h"

namespace xffl::llama {

inline constexpr int64_t kIgnoreLabel = -100;

/// How many rows of logits exist at once, of `num_rows`.
int64_t head_chunk_rows(at::Device device, int64_t num_rows, int64_t vocab_size);

/// Which of the labels are targets, where the caller knows: a GPU would be waited for, twice.
struct Targets {
  int64_t count = -1;   // -1: nobody knows; else the labels are within the vocabulary
  at::Tensor rows_M{};  // int64, on the labels' device; undefined where all are
};

struct HeadLoss {
  at::Tensor nll_sum;  // float64 scalar: the sum of negative log-likelihoods, without `scale`
  at::Tensor grad_x_ND;
};

/// Loss and gradients in one pass: adds d(scale * nll_sum)/d(head) to head's gradient and returns
/// that of x. Peak memory is one chunk of logits: 32 million of them (256 million on a GPU), which
/// `logits_RV` keeps for the next call: where the device is a CPU, new memory costs more than what
/// is done with it. `enter` is told of kHead and kBackward in turn, once for each chunk.
HeadLoss head_loss(const at::Tensor& x_ND, Weight& head, const at::Tensor& labels_N, double scale,
                   at::Tensor* logits_RV = nullptr, const Targets& targets = {},
                   const PhaseHook& enter = {});

/// The negative log-likelihood of each label in float32; 0 where it is ignored. No gradients.
at::Tensor head_nll(const at::Tensor& x_ND, const at::Tensor& head_VD, const at::Tensor& labels_N);

}  // namespace xffl::llama
