// How it works: one reused buffer holds the logits of R positions. The gradient of the logits
// overwrites them, and two products add it to the gradients of x and of the head at once. Within a
// chunk the softmax runs over blocks of rows that stay in a CPU's cache. The caller passes the
// scale beforehand, so that no work is left for a backward pass.
#include "xffl/llama/head_loss.h"

#include <ATen/Parallel.h>
#include <torch/types.h>

#include <algorithm>
#include <type_traits>

#include "on_cpu.h"
#include "pointwise.h"
#include "product.h"
#include "xffl/base/error.h"
#include "xffl/kernels/cpu/conversions.h"
#include "xffl/kernels/cuda/gpu.h"

namespace xffl::llama {
namespace {

constexpr int64_t kChunkElements = 32 << 20;
constexpr int64_t kMinChunkRows = 64;
constexpr int64_t kMaxChunkRows = 2048;
// On a GPU each chunk costs a pass over the head's gradient, and products need whole tiles.
constexpr int64_t kGpuChunkElements = 256 << 20;
constexpr int64_t kGpuTileRows = 128;
constexpr int64_t kCacheElements = 256 << 10;

int64_t block_rows(const at::Tensor& logits_RV) {
  if (!logits_RV.is_cpu()) return logits_RV.size(0);
  return std::clamp(kCacheElements / logits_RV.size(1), int64_t{1}, logits_RV.size(0));
}

// The rows with a target label.
at::Tensor target_rows(const at::Tensor& labels_N, int64_t vocab_size) {
  const at::Tensor is_target_N = labels_N.ne(kIgnoreLabel);
  const at::Tensor is_outside_N = labels_N.lt(0).logical_or_(labels_N.ge(vocab_size));
  if (is_outside_N.logical_and_(is_target_N).any().item<bool>())
    throw Error(ErrorKind::kInternal, "llama::head_loss: a label is beyond the vocabulary");
  return is_target_N.nonzero().squeeze(1);
}

// Writes the rows' NLL; with `into_gradient` the logits become scale * (softmax - one_hot(label)).
void softmax_rows_by_aten(at::Tensor logits_RV, const at::Tensor& labels_R, at::Tensor nll_R,
                          bool into_gradient, double scale) {
  const int64_t step = block_rows(logits_RV);
  for (int64_t begin = 0; begin < logits_RV.size(0); begin += step) {
    const int64_t count = std::min(step, logits_RV.size(0) - begin);
    at::Tensor block_CV = logits_RV.narrow(0, begin, count);
    const at::Tensor label_C1 = labels_R.narrow(0, begin, count).unsqueeze(1);
    const at::Tensor log_p_CV =
        at::log_softmax(block_CV, 1, accumulation_type(block_CV.scalar_type()));
    const at::Tensor log_p_C1 = log_p_CV.gather(1, label_C1);
    nll_R.narrow(0, begin, count).copy_(log_p_C1.squeeze(1)).neg_();
    if (!into_gradient) continue;
    at::mul_out(block_CV, log_p_CV.exp(), at::scalar_tensor(scale, log_p_CV.options()));
    block_CV.scatter_(1, label_C1, log_p_C1.expm1().mul_(scale).to(block_CV.scalar_type()));
  }
}

// Whether the label is the first among the row's largest logits. A NaN is larger than every number.
template <class T>
bool is_first_largest(const T* logits_V, int64_t size, int64_t label) {
  constexpr int64_t kBlock = 512;  // most rows have a larger logit in one of the first blocks
  const auto wide = [](T value) {
    if constexpr (std::is_same_v<T, Bf16>)
      return kernels::bf16_to_float(value.bits);
    else
      return value;
  };
  const auto logit = wide(logits_V[label]);
  for (int64_t begin = 0; begin < size; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, size), before = std::clamp(label, begin, end);
    bool larger = false;
    for (int64_t i = begin; i < before; ++i) larger |= !(wide(logits_V[i]) < logit);
    for (int64_t i = before; i < end; ++i) larger |= !(wide(logits_V[i]) <= logit);
    if (larger) return false;
  }
  return true;
}

// Sets the rows' hits to 1 where the label has the largest logit, else to 0.
void mark_hits(const at::Tensor& logits_RV, const at::Tensor& labels_R, at::Tensor hits_R) {
  const bool done = on_cpu(logits_RV, [&]<class T>(T) {
    const int64_t width = logits_RV.size(1);
    at::parallel_for(0, logits_RV.size(0), 16, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        mutable_data<float>(hits_R)[row] = is_first_largest(
            const_data<T>(logits_RV) + row * width, width, const_data<int64_t>(labels_R)[row]);
    });
  });
  if (!done) hits_R.copy_(logits_RV.argmax(1).eq(labels_R));
}

void softmax_rows(at::Tensor logits_RV, const at::Tensor& labels_R, at::Tensor nll_R,
                  bool into_gradient, double scale) {
  if (kernels::gpu::cross_entropy(logits_RV, labels_R, nll_R, kIgnoreLabel, into_gradient, scale))
    return;
  const bool done = on_cpu(logits_RV, [&]<class T>(T) {
    const int64_t width = logits_RV.size(1);
    at::parallel_for(0, logits_RV.size(0), 1, [&](int64_t begin, int64_t end) {
      std::vector<Wide<T>> scratch(into_gradient ? static_cast<size_t>(width) : 0);
      for (int64_t row = begin; row < end; ++row) {
        mutable_data<Wide<T>>(nll_R)[row] = kernels::block_kernels<T>().cross_entropy(
            mutable_data<T>(logits_RV) + row * width, width, const_data<int64_t>(labels_R)[row],
            static_cast<Wide<T>>(scale), into_gradient ? scratch.data() : nullptr);
      }
    });
  });
  if (!done) softmax_rows_by_aten(logits_RV, labels_R, nll_R, into_gradient, scale);
}

// On a CPU returns `kept`, which the function first replaces if its shape or dtype does not fit.
at::Tensor logits_buffer(int64_t rows, int64_t vocab_size, const at::TensorOptions& options,
                         at::Tensor* kept) {
  if (kept == nullptr || !options.device().is_cpu()) return at::empty({rows, vocab_size}, options);
  if (!kept->defined() || kept->size(0) < rows || kept->size(1) != vocab_size ||
      kept->scalar_type() != at::typeMetaToScalarType(options.dtype()))
    *kept = at::empty({rows, vocab_size}, options);
  return *kept;
}

// The rows of x with a target, and their NLL.
struct TargetRows {
  at::Tensor rows_M;  // may be undefined if all rows have a target
  int64_t count;
  bool all;
  at::Tensor x_MD, labels_M, nll_M, hits_M;
  int64_t step;  // rows of a chunk

  TargetRows(const at::Tensor& x_ND, const at::Tensor& labels_N, int64_t vocab_size,
             const Targets& targets)
      : rows_M(targets.count >= 0 ? targets.rows_M : target_rows(labels_N, vocab_size)),
        count(targets.count >= 0 ? targets.count : rows_M.size(0)),
        all(count == x_ND.size(0)),
        x_MD(all ? x_ND : x_ND.index_select(0, rows_M)),
        labels_M(all ? labels_N : labels_N.index_select(0, rows_M)),
        nll_M(at::empty({count}, x_ND.options().dtype(accumulation_type(x_ND.scalar_type())))),
        hits_M(at::empty({count}, x_ND.options().dtype(at::kFloat))),
        step(head_chunk_rows(x_ND.device(), count, vocab_size)) {}

  // Computes the logits of rows [begin, begin + rows), or with `into_gradient` their gradient, in
  // `buffer_RV`.
  at::Tensor chunk(int64_t begin, int64_t rows, const at::Tensor& head_VD,
                   const at::Tensor& buffer_RV, bool into_gradient, double scale) const {
    const at::Tensor chunk_RV = buffer_RV.narrow(0, 0, rows);
    multiply_into(chunk_RV, x_MD.narrow(0, begin, rows), head_VD.t());
    const at::Tensor labels_R = labels_M.narrow(0, begin, rows);
    mark_hits(chunk_RV, labels_R, hits_M.narrow(0, begin, rows));
    softmax_rows(chunk_RV, labels_R, nll_M.narrow(0, begin, rows), into_gradient, scale);
    return chunk_RV;
  }
};

}  // namespace

int64_t head_chunk_rows(at::Device device, int64_t num_rows, int64_t vocab_size) {
  if (device.is_cuda()) {
    const int64_t tiles = kGpuChunkElements / vocab_size / kGpuTileRows;
    return std::min(num_rows, std::max(tiles, int64_t{1}) * kGpuTileRows);
  }
  return std::min(num_rows, std::clamp(kChunkElements / vocab_size, kMinChunkRows, kMaxChunkRows));
}

HeadLoss head_loss(const at::Tensor& x_ND, Weight& head, const at::Tensor& labels_N, double scale,
                   at::Tensor* logits_RV, const Targets& targets, const PhaseHook& enter) {
  const at::NoGradGuard no_grad;
  const TargetRows rows(x_ND, labels_N, head.value.size(0), targets);
  at::Tensor grad_x_MD = at::empty_like(rows.x_MD);
  const auto logits = logits_buffer(rows.step, head.value.size(0), x_ND.options(), logits_RV);
  for (int64_t begin = 0; begin < rows.count; begin += rows.step) {
    const int64_t count = std::min(rows.step, rows.count - begin);
    const at::Tensor x_RD = rows.x_MD.narrow(0, begin, count);
    if (enter) enter(Phase::kHead);
    const at::Tensor chunk_RV = rows.chunk(begin, count, head.value, logits, true, scale);
    if (enter) enter(Phase::kBackward);
    multiply_into(grad_x_MD.narrow(0, begin, count), chunk_RV, head.value);
    head.add_product(chunk_RV, x_RD);
  }
  return {rows.nll_M.sum(at::kDouble),
          rows.all ? grad_x_MD : at::zeros_like(x_ND).index_copy_(0, rows.rows_M, grad_x_MD),
          rows.hits_M.sum(at::kDouble)};
}

at::Tensor head_nll(const at::Tensor& x_ND, const at::Tensor& head_VD, const at::Tensor& labels_N,
                    at::Tensor* hits_N) {
  const at::NoGradGuard no_grad;
  const TargetRows rows(x_ND, labels_N, head_VD.size(0), {});
  const at::Tensor logits_RV = at::empty({rows.step, head_VD.size(0)}, x_ND.options());
  for (int64_t begin = 0; begin < rows.count; begin += rows.step)
    rows.chunk(begin, std::min(rows.step, rows.count - begin), head_VD, logits_RV, false, 1);
  const auto scattered = [&](const at::Tensor& values_M) {
    return at::zeros({x_ND.size(0)}, values_M.options()).index_copy_(0, rows.rows_M, values_M);
  };
  if (hits_N != nullptr) *hits_N = scattered(rows.hits_M);
  return scattered(rows.nll_M);
}

}  // namespace xffl::llama
