// V vocabulary, D hidden.
#include "xffl/train/tied_head.h"

#include <torch/types.h>

namespace xffl::train {

TiedHead::TiedHead(llama::Model& model, comm::Group& stages, const at::TensorOptions& values,
                   std::optional<at::ScalarType> gradient_dtype)
    : model_(model), ends_(stages.split({0, stages.size() - 1}, "tied head")) {
  const checkpoint::LlamaConfig& config = model.config();
  const std::vector<int64_t> shape{config.vocab_size, config.hidden_size};
  if (gradient_dtype) gradient_VD_ = at::empty(shape, values.dtype(*gradient_dtype));
  if (llama::Weight* const copy = model.head_copy()) {
    copy->value = at::empty(shape, values);
    copy->gradient = gradient_VD_;
  }
}

void TiedHead::copy_values() {
  if (!is_first()) return ends_->start_receive(model_.head_copy()->value, 0).wait();
  model_.use_embedding({.values = true}, [&](llama::Weight& embedding) {
    ends_->start_send(embedding.value.contiguous(), 1).wait();
  });
}

void TiedHead::begin_step() {
  if (!is_first()) model_.head_copy()->clear();
}

void TiedHead::add_gradient(shard::FlatParameters& parameters) {
  if (!gradient_VD_.defined()) return;
  if (!is_first()) {
    model_.head_copy()->finish();
    return ends_->start_send(gradient_VD_, 0).wait();
  }
  ends_->start_receive(gradient_VD_, 1).wait();
  parameters.set_last_micro_batch(false);
  model_.use_embedding({.gradients = true},
                       [&](llama::Weight& embedding) { embedding.add(gradient_VD_); });
}

}  // namespace xffl::train
