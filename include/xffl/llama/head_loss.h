// The vocabulary projection and the cross-entropy together, chunk by chunk: the logits of all
// positions never exist at once.
//
// N positions, D hidden, V vocabulary. A position with the label kIgnoreLabel has no target. The
// softmax is in float32 over logits in the dtype of x, as in Hugging Face's code.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "xffl/llama/weight.h"

namespace xffl::llama {

/// The phases of a step, for clocks.
enum class Phase {
  kForward,   // embedding and blocks
  kHead,      // the final norm, the logits and the cross-entropy
  kBackward,  // all gradients, the head's included
};

/// The computing thread calls the hook at the beginning of a phase: after all earlier work of the
/// device, before the phase's own work. Chunks of the head alternate between kHead and kBackward.
using PhaseHook = std::function<void(Phase)>;

inline constexpr int64_t kIgnoreLabel = -100;

/// The number of rows of logits, among `num_rows`, that exist at once.
int64_t head_chunk_rows(at::Device device, int64_t num_rows, int64_t vocab_size);

/// The targets among the labels, if the caller knows them. If the caller does not, head_loss()
/// finds the targets, for which the host waits for a GPU twice.
struct Targets {
  int64_t count = -1;   // -1: unknown; else all labels are in the vocabulary
  at::Tensor rows_M{};  // int64, on the labels' device; undefined: all labels are targets
};

struct HeadLoss {
  at::Tensor nll_sum;  // float64 scalar: the sum of negative log-likelihoods, without `scale`
  at::Tensor grad_x_ND;
  at::Tensor
      hits;  // float64 scalar: the number of targets with the largest logit of their position
};

/// Computes loss and gradients in one pass: adds d(scale * nll_sum)/d(head) to the head's gradient
/// and returns the gradient of x. Peak memory is one chunk of 32 million logits (256 million on a
/// GPU). `logits_RV` keeps the chunk's memory for the next call: on a CPU, new memory costs more
/// than the work on it. Each chunk calls `enter` with kHead, then with kBackward.
HeadLoss head_loss(const at::Tensor& x_ND, Weight& head, const at::Tensor& labels_N, double scale,
                   at::Tensor* logits_RV = nullptr, const Targets& targets = {},
                   const PhaseHook& enter = {});

/// The negative log-likelihood of each label in float32; 0 for kIgnoreLabel. No gradients.
/// `hits_N`, if not null, receives 1 for each label with the largest logit of its position (the
/// first one among equal logits, as torch.argmax), else 0.
at::Tensor head_nll(const at::Tensor& x_ND, const at::Tensor& head_VD, const at::Tensor& labels_N,
                    at::Tensor* hits_N = nullptr);

}  // namespace xffl::llama
