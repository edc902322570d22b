#include "xffl/llama/rope.h"

#include <torch/autograd.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "pointwise.h"

namespace xffl::llama {
namespace {

// Stretches long wavelengths by `factor`, keeps short wavelengths, and interpolates between them
// (Llama 3.1).
at::Tensor stretch_llama3(const checkpoint::Rope& rope, const at::Tensor& frequencies_F) {
  const double old_context = static_cast<double>(rope.original_max_position_embeddings);
  const double low_wavelength = old_context / rope.low_freq_factor;
  const double high_wavelength = old_context / rope.high_freq_factor;
  const at::Tensor wavelength_F = 2 * std::numbers::pi / frequencies_F;
  const at::Tensor is_long_F = wavelength_F > low_wavelength;
  const at::Tensor is_between_F = ~(wavelength_F < high_wavelength) & ~is_long_F;
  const at::Tensor stretched_F = at::where(is_long_F, frequencies_F / rope.factor, frequencies_F);
  const at::Tensor smooth_F = (old_context / wavelength_F - rope.low_freq_factor) /
                              (rope.high_freq_factor - rope.low_freq_factor);
  const at::Tensor between_F = (1 - smooth_F) * stretched_F / rope.factor + smooth_F * stretched_F;
  return at::where(is_between_F, between_F, stretched_F);
}

// The pair, in general between two pairs, that turns `rotations` times in the original context.
double pair_of_rotations(const checkpoint::Rope& rope, int64_t head_dim, double rotations) {
  const double old_context = static_cast<double>(rope.original_max_position_embeddings);
  return static_cast<double>(head_dim) *
         std::log(old_context / (rotations * 2 * std::numbers::pi)) / (2 * std::log(rope.theta));
}

// Keeps the frequencies of pairs that turn often, divides those of pairs that turn seldom by
// `factor`, and mixes both along a ramp of pairs (YaRN, Peng et al., 2023).
at::Tensor stretch_yarn(const checkpoint::Rope& rope, const at::Tensor& powers_F,
                        int64_t head_dim) {
  double low = pair_of_rotations(rope, head_dim, rope.beta_fast);
  double high = pair_of_rotations(rope, head_dim, rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(head_dim - 1));
  if (low == high) high += 0.001;
  const at::Tensor ramp_F =
      ((at::arange(head_dim / 2, at::kFloat) - low) / (high - low)).clamp_(0, 1);
  const at::Tensor kept_F = 1 - ramp_F;
  return 1.0 / (rope.factor * powers_F) * (1 - kept_F) + 1.0 / powers_F * kept_F;
}

struct RopeFunction : torch::autograd::Function<RopeFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x_BTNH,
                            const at::Tensor& cos_TF, const at::Tensor& sin_TF) {
    context->save_for_backward({cos_TF, sin_TF});
    return rotate(x_BTNH, {cos_TF, sin_TF}, 1);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const auto saved = context->get_saved_variables();
    return {rotate(grads[0], {saved[0], saved[1]}, -1), {}, {}};
  }
};

}  // namespace

at::Tensor rope_frequencies(const checkpoint::Rope& rope, int64_t head_dim) {
  const at::Tensor exponent_F = at::arange(0, head_dim, 2, at::kLong).to(at::kFloat) / head_dim;
  const at::Tensor powers_F = at::pow(rope.theta, exponent_F);
  if (rope.kind == checkpoint::RopeKind::kYarn) return stretch_yarn(rope, powers_F, head_dim);
  const at::Tensor frequencies_F = 1.0 / powers_F;
  if (rope.kind == checkpoint::RopeKind::kLinear) return frequencies_F / rope.factor;
  return rope.kind == checkpoint::RopeKind::kLlama3 ? stretch_llama3(rope, frequencies_F)
                                                    : frequencies_F;
}

RopeTable make_rope_table(const at::Tensor& frequencies_F, int64_t num_positions,
                          const at::TensorOptions& options, double scale) {
  const at::Tensor angles_TF =
      at::outer(at::arange(num_positions, frequencies_F.options()), frequencies_F);
  // Float64 gives a position's row the same bits in a table of any length. In float32, vectors and
  // remainders would differ.
  const at::Tensor wide_TF = angles_TF.to(at::kDouble);
  const auto rounded = [&](const at::Tensor& wide) {
    return wide.to(at::kFloat).mul_(scale).to(options);
  };
  return {rounded(wide_TF.cos()), rounded(wide_TF.sin())};
}

RopeTable first_positions(const RopeTable& table, int64_t count) {
  return {table.cos_TF.narrow(0, 0, count), table.sin_TF.narrow(0, 0, count)};
}

RopeTable at_positions(const RopeTable& table, const Documents& documents) {
  const int64_t length = documents.starts_BT.size(1);
  const at::Device device = table.cos_TF.device();
  at::Tensor positions = (at::arange(length, at::kLong) - documents.starts_BT).flatten();
  if (device.is_cuda()) positions = positions.pin_memory();
  positions = positions.to(device, /*non_blocking=*/true);
  return {table.cos_TF.index_select(0, positions), table.sin_TF.index_select(0, positions)};
}

Documents within_window(const Documents& documents, int64_t window, int64_t batch, int64_t length) {
  if (length <= window) return documents;
  const at::Tensor starts_T = (at::arange(length, at::kLong) - (window - 1)).clamp_min_(0);
  if (!documents.defined()) return {starts_T.expand({batch, length}).contiguous()};
  return {at::maximum(documents.starts_BT, starts_T)};
}

at::Tensor apply_rope(const at::Tensor& x_BTNH, const RopeTable& table) {
  return RopeFunction::apply(x_BTNH, table.cos_TF, table.sin_TF);
}

}  // namespace xffl::llama
