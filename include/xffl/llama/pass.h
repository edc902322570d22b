// One micro-batch's forward and backward through this process's units.
//
// In a pipeline's stage, other micro-batches may run between forward and backward. Activations are
// kept per block: a block's activations are freed right after its backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "xffl/llama/head_loss.h"
#include "xffl/llama/model.h"

namespace xffl::llama {

class Pass {
 public:
  /// The first stage needs tokens, the last stage labels (see Model::accumulate_gradients), and all
  /// stages documents. `targets` are the targets of the flattened labels.
  Pass(Model& model, at::Tensor tokens_BT, at::Tensor labels_BT, double scale,
       Documents documents = {}, Targets targets = {})
      : model_(model),
        tokens_BT_(std::move(tokens_BT)),
        labels_BT_(std::move(labels_BT)),
        scale_(scale),
        documents_(std::move(documents)),
        targets_(std::move(targets)) {}

  /// Takes the previous stage's output (undefined in the first stage) and returns this stage's
  /// output, before the final norm.
  at::Tensor forward(at::Tensor x_BTD);
  /// Takes the gradient of forward's result (undefined in the last stage, which computes the loss
  /// here) and returns the gradient of forward's input (undefined in the first stage). Adds to the
  /// weights' gradients.
  at::Tensor backward(at::Tensor grad_BTD);
  /// The last stage's sum of the NLL, a float64 scalar, after backward.
  const at::Tensor& nll_sum() const { return nll_sum_; }

 private:
  struct BlockTape {
    at::Tensor input_BTD;
    at::Tensor output_BTD;  // undefined: backward recomputes it
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
  Positions where_;  // set by forward
  std::vector<BlockTape> tape_;
  at::Tensor trunk_BTD_;  // the last block's output
  at::Tensor nll_sum_;
};

}  // namespace xffl::llama
