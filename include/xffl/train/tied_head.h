// The head of a model with tie_word_embeddings whose embedding is on another pipeline stage.
//
// The first stage owns the embedding: its masters, its optimizer state and its place in
// checkpoints. The last stage has a copy of the values, which each step and each evaluation
// receives, and a gradient, which the last stage sends after its last micro-batch. The first stage
// adds the gradient as one more micro-batch, so norms, clipping and the optimizer see one
// embedding.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>

#include "xffl/comm/group.h"
#include "xffl/llama/model.h"
#include "xffl/shard/flat_parameters.h"

namespace xffl::train {

class TiedHead {
 public:
  /// For the first and the last of `stages`, which connect here; both outlive this object. An
  /// undefined `gradient_dtype`: no gradients.
  TiedHead(llama::Model& model, comm::Group& stages, const at::TensorOptions& values,
           std::optional<at::ScalarType> gradient_dtype);

  /// Copies the embedding's values to the last stage. Collective over the two stages.
  void copy_values();
  /// Begins a step's gradients.
  void begin_step();
  /// Adds the head's gradients of this step to the embedding's gradient, before the first stage's
  /// last backward. Each of the two stages calls it once in a step.
  void add_gradient(shard::FlatParameters& parameters);

 private:
  bool is_first() const { return ends_->rank() == 0; }

  llama::Model& model_;
  std::unique_ptr<comm::Group> ends_;
  at::Tensor gradient_VD_;  // undefined without gradients
};

}  // namespace xffl::train
