// The layers of a block. A layer is differentiable in its activations. Its backward adds the
// gradients of its parameters to their Weights: at most once per forward, in the thread that calls
// backward.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <vector>

#include "xffl/llama/model.h"
#include "xffl/llama/weight.h"

namespace xffl::llama {

/// Dropout of A's input, as in PEFT: an element becomes zero with `probability`; dropout divides
/// the other elements by 1 - probability. `seed` determines the masks of all layers; without a seed
/// there is no dropout.
struct LoraDropout {
  double probability = 0;
  std::optional<uint64_t> seed{};
};

/// With DoRA: the lengths of the rows of W', by Lora::layer. The layers keep them from one forward
/// to the next as long as a Decoder reads weights that do not change; a token of a sequence would
/// otherwise cost `rank` times as much.
struct KeptLengths {
  bool enabled = false;
  std::vector<at::Tensor> lengths_E;
};

/// The part of a LoRA adapter (Hu et al., 2021): scaling * dropout(x) A^T B^T, with A [rank, in], B
/// [out, rank].
///
/// With magnitudes (DoRA: Liu et al., 2024) row i of W' = W + scaling B A gets the length
/// magnitude[i], and dropout applies to the change alone, as in PEFT: y = W x + b - W x' + f W' x',
/// with x' = dropout(x) and f = magnitude / |W'|. The gradient takes |W'| for a constant (section
/// 4.3). |W'| is rounded to the dtype of W, as the magnitudes are: f is exactly 1 for magnitudes
/// that equal |W'|. f is 0 for a row of zeros, which has no direction.
struct Lora {
  Weight* a = nullptr;  // null: no adapter
  Weight* b = nullptr;
  double scaling = 0;
  const LoraDropout* dropout = nullptr;  // null: none
  uint64_t layer = 0;                    // distinct for each layer
  Weight* magnitude = nullptr;           // null: none
  KeptLengths* kept = nullptr;           // null: none
};

struct Linear {
  Weight* weight = nullptr;
  Weight* bias = nullptr;  // null: none
  Lora lora{};
};

/// Recomputes a layer's input, with the same bits: the layer then keeps no input for its backward.
using InputAgain = std::function<at::Tensor()>;

/// x W_i^T + b_i, plus the adapter's part, for several layers with the same x. One buffer sums the
/// gradient of x over the layers.
std::vector<at::Tensor> apply_linears(const at::Tensor& x_BTD, const std::vector<Linear>& linears,
                                      const InputAgain& again = {});
at::Tensor apply_linear(const at::Tensor& x_BTD, const Linear& linear,
                        const InputAgain& again = {});

/// Root mean square norm in float32, rounded to the dtype of x before the weight multiplies (as
/// Hugging Face does).
at::Tensor rms_norm(const at::Tensor& x_BTD, Weight& weight, double epsilon);

/// A projection as heads of `head_dim`; each head has its rms_norm if `norm` is not null.
at::Tensor heads_of(const at::Tensor& x_BTE, int64_t head_dim, Weight* norm, double epsilon);

struct SumAndNorm {
  at::Tensor sum_BTD;
  at::Tensor normed_BTD;
};
/// x + delta, and its rms_norm.
SumAndNorm add_rms_norm(const at::Tensor& x_BTD, const at::Tensor& delta_BTD, Weight& weight,
                        double epsilon);

/// silu(gate) * up
at::Tensor swiglu(const at::Tensor& gate_BTI, const at::Tensor& up_BTI);

/// A block's weights.
struct Block {
  Weight* input_norm = nullptr;
  Weight* attention_norm = nullptr;
  Weight* q_norm = nullptr;  // null: none
  Weight* k_norm = nullptr;
  std::vector<Linear> qkv;
  Linear output;
  std::vector<Linear> gate_up;
  Linear down;
};

inline constexpr UnitUse kValues{true, false};

/// Calls enter, and leave at the scope's end unless an exception ends it.
class UseOfUnit {
 public:
  UseOfUnit(const UnitHooks& hooks, int unit, UnitUse use)
      : hooks_(hooks), unit_(unit), use_(use), exceptions_(std::uncaught_exceptions()) {
    if (hooks_.enter) hooks_.enter(unit_, use_);
  }
  ~UseOfUnit() noexcept(false) {
    if (hooks_.leave && std::uncaught_exceptions() == exceptions_) hooks_.leave(unit_, use_);
  }
  UseOfUnit(const UseOfUnit&) = delete;
  UseOfUnit& operator=(const UseOfUnit&) = delete;

 private:
  const UnitHooks& hooks_;
  int unit_;
  UnitUse use_;
  int exceptions_;
};

}  // namespace xffl::llama
