// B is 1, T fed positions, C capacity, N heads, K key/value heads, H head_dim.
#include "xffl/llama/decoder.h"

#include <torch/types.h>

#include <algorithm>

#include "attention.h"
#include "layers.h"
#include "pointwise.h"
#include "product.h"
#include "xffl/base/error.h"

namespace xffl::llama {

Decoder::Decoder(Model& model, int64_t capacity)
    : model_(model),
      capacity_(capacity),
      keys_BCKH_(static_cast<size_t>(model.config_.num_layers)),
      values_BCKH_(static_cast<size_t>(model.config_.num_layers)) {
  if (!model.has_embedding() || !model.has_head())
    throw Error(ErrorKind::kInternal, "llama::Decoder: the model is a pipeline stage");
  if (model.lengths_ != nullptr) model.lengths_->enabled = true;
}

Decoder::~Decoder() {
  if (model_.lengths_ == nullptr) return;
  model_.lengths_->enabled = false;
  for (at::Tensor& lengths_E : model_.lengths_->lengths_E) lengths_E.reset();
}

at::Tensor Decoder::attention(const at::Tensor& x_BTD, int layer) {
  const checkpoint::LlamaConfig& config = model_.config_;
  const Block& block = model_.blocks_[static_cast<size_t>(layer)];
  const int64_t count = x_BTD.size(1);
  const std::vector<at::Tensor> qkv = apply_linears(x_BTD, block.qkv);
  const RopeTable here{rope_table_.cos_TF.narrow(0, num_positions_, count),
                       rope_table_.sin_TF.narrow(0, num_positions_, count)};
  const auto heads = [&](size_t i, Weight* norm) {
    return heads_of(qkv[i], config.head_dim, norm, config.rms_norm_eps);
  };
  const at::Tensor q_BTNH = rotate(heads(0, block.q_norm), here, 1);
  const at::Tensor k_BTKH = rotate(heads(1, block.k_norm), here, 1);
  const at::Tensor v_BTKH = heads(2, nullptr);
  at::Tensor& keys_BCKH = keys_BCKH_[static_cast<size_t>(layer)];
  at::Tensor& values_BCKH = values_BCKH_[static_cast<size_t>(layer)];
  if (!keys_BCKH.defined()) {
    keys_BCKH = at::empty({1, capacity_, config.num_kv_heads, config.head_dim}, k_BTKH.options());
    values_BCKH = at::empty_like(keys_BCKH);
  }
  keys_BCKH.narrow(1, num_positions_, count).copy_(k_BTKH);
  values_BCKH.narrow(1, num_positions_, count).copy_(v_BTKH);
  const int64_t known = num_positions_ + count;
  const int64_t window = config.sliding_window.value_or(known);
  if (num_positions_ == 0)
    return causal_attention(q_BTNH, k_BTKH, v_BTKH, within_window({}, window, 1, count));
  const int64_t visible = std::min(window, known);
  return attention_by_aten(q_BTNH, keys_BCKH.narrow(1, known - visible, visible),
                           values_BCKH.narrow(1, known - visible, visible), false);
}

at::Tensor Decoder::block(const at::Tensor& x_BTD, int layer) {
  const UseOfUnit use(model_.options_.hooks, layer + 1, kValues);
  const Block& block = model_.blocks_[static_cast<size_t>(layer)];
  const double epsilon = model_.config_.rms_norm_eps;
  const at::Tensor y_BTNH = attention(rms_norm(x_BTD, *block.input_norm, epsilon), layer);
  const SumAndNorm middle =
      add_rms_norm(x_BTD, apply_linear(y_BTNH.reshape({1, x_BTD.size(1), -1}), block.output),
                   *block.attention_norm, epsilon);
  const std::vector<at::Tensor> gate_up = apply_linears(middle.normed_BTD, block.gate_up);
  return middle.sum_BTD + apply_linear(swiglu(gate_up[0], gate_up[1]), block.down);
}

at::Tensor Decoder::embed(const std::vector<int64_t>& ids) {
  const UseOfUnit use(model_.options_.hooks, 0, kValues);
  const at::Tensor& weight_VD = model_.embedding_->value;
  return at::embedding(weight_VD, at::tensor(ids, at::kLong).unsqueeze(0).to(weight_VD.device()));
}

at::Tensor Decoder::feed(const std::vector<int64_t>& ids) {
  const at::NoGradGuard no_grad;
  const auto count = static_cast<int64_t>(ids.size());
  if (count == 0 || (num_positions_ > 0 && count != 1) || num_positions_ + count > capacity_)
    throw Error(ErrorKind::kInternal, "llama::Decoder: " + std::to_string(count) +
                                          " ids at position " + std::to_string(num_positions_) +
                                          " of " + std::to_string(capacity_));
  at::Tensor x_BTD = embed(ids);
  if (num_positions_ == 0) rope_table_ = model_.table_of(capacity_, x_BTD.options());
  for (int layer = 0; layer < static_cast<int>(model_.config_.num_layers); ++layer)
    x_BTD = block(x_BTD, layer);
  num_positions_ += count;
  const UseOfUnit use(model_.options_.hooks, model_.head_unit(), kValues);
  std::optional<UseOfUnit> tied;
  if (model_.is_tied()) tied.emplace(model_.options_.hooks, 0, kValues);
  const at::Tensor y_BTD = rms_norm(x_BTD.narrow(1, count - 1, 1).contiguous(), *model_.final_norm_,
                                    model_.config_.rms_norm_eps);
  return multiply_linear(y_BTD.view({1, -1}), model_.head().value, {}).to(at::kFloat).view({-1});
}

}  // namespace xffl::llama
