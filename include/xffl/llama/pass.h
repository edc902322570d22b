// One micro-batch on its way through this process's units: forward, then backward.
//
// Of a whole model, both in a row; of a pipeline's stage, other micro-batches may be between. What
// backward needs is kept per block, so a block's share is freed as soon as its backward is done.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "xffl/llama/head_loss.h"
#include "xffl/llama/model.h"

namespace xffl::llama {

class Pass {
 public:
  /// tokens are needed by the first stage, labels by the last one (see
  /// Model::accumulate_gradients), documents by all. `targets` are those of the flattened labels.
  Pass(Model& model, at::Tensor tokens_BT, at::Tensor labels_BT, double scale,
       Documents documents = {}, Targets targets = {})
      : model_(model),
        tokens_BT_(std::move(tokens_BT)),
        labels_BT_(std::move(labels_BT)),
        scale_(scale),
        documents_(std::move(documents)),
        targets_(std::move(targets)) {}

  /// Takes the former stage's output (undefined in the first stage) and returns this one's, before
  /// the final norm.
  at::Tensor forward(at::Tensor x_BTD);
  /// Takes the gradient of what forward returned (undefined in the last stage, which computes the
  /// loss here) and returns that of its input (undefined in the first stage). Adds to the weights'
  /// gradients.
  at::Tensor backward(at::Tensor grad_BTD);
  /// The last stage's sum of the NLL, a float64 scalar, after backward.
  const at::Tensor& nll_sum() const { return nll_sum_; }

 private:
  struct BlockTape {
    at::Tensor input_BTD;
    at::Tensor output_BTD;  // undefined: to be computed again
  };
  at::Tensor block_forward(int unit, const at::Tensor& x_BTD);
  at::Tensor block_backward(int unit, const at::Tensor& grad_BTD);
  at::Tensor head_backward();
  void embedding_backward(const at::Tensor& grad_BTD);

  Model& model_;
  at::Tensor tokens_BT_;
  at::Tensor labels_BT_;
  double scale_;
  Documents documents_;
  Targets targets_;
  Positions where_;  // from forward on
  std::vector<BlockTape> tape_;
  at::Tensor trunk_BTD_;  // the last block's output
  at::Tensor nll_sum_;
};

}  // namespace xffl::llama
