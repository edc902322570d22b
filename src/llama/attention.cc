// B sequences, T positions, N heads, K key/value heads, H head_dim, G = N / K. Threads share the B
// K key/value heads. One thread computes a head's gradients, so that sums do not depend on the
// number of threads.
#include "attention.h"

#include <ATen/Parallel.h>
#include <torch/autograd.h>

#include <algorithm>
#include <cmath>

#include "on_cpu.h"
#include "product.h"
#include "xffl/kernels/cuda/gpu.h"

namespace xffl::llama {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The shape of sequence `b`.
kernels::AttentionShape shape_of(const at::Tensor& q_BTNH, const at::Tensor& k_BTKH,
                                 const at::Tensor& starts_BT, int64_t b) {
  const int64_t heads = q_BTNH.size(2), kv_heads = k_BTKH.size(2), width = q_BTNH.size(3);
  const int64_t* starts = const_data<int64_t>(starts_BT);
  return {
      q_BTNH.size(1), heads / kv_heads, width,
      heads * width,  kv_heads * width, starts == nullptr ? starts : starts + b * q_BTNH.size(1)};
}

double scale_of(const at::Tensor& q_BTNH) {
  return 1.0 / std::sqrt(static_cast<double>(q_BTNH.size(3)));
}

// Offsets, in elements, of the first head that shares key/value head `item` of B K.
struct Offsets {
  int64_t q, kv, log_sums;
};
Offsets offsets_of(int64_t item, int64_t kv_heads, const kernels::AttentionShape& shape) {
  const int64_t sequence = item / kv_heads, head = item % kv_heads;
  return {sequence * shape.positions * shape.q_stride + head * shape.group * shape.head_dim,
          sequence * shape.positions * shape.kv_stride + head * shape.head_dim,
          item * shape.group * shape.positions};
}

// Calls `body` for each key/value head of each sequence, in several threads.
template <class T, class Body>
void for_kv_heads(const at::Tensor& q_BTNH, const at::Tensor& k_BTKH, const at::Tensor& starts_BT,
                  const Body& body) {
  const int64_t kv_heads = k_BTKH.size(2);
  const auto size = kernels::attention_scratch_size(shape_of(q_BTNH, k_BTKH, {}, 0));
  at::parallel_for(0, q_BTNH.size(0) * kv_heads, 1, [&](int64_t begin, int64_t end) {
    std::vector<Wide<T>> scratch(static_cast<size_t>(size));
    for (int64_t item = begin; item < end; ++item) {
      const auto shape = shape_of(q_BTNH, k_BTKH, starts_BT, item / kv_heads);
      body(shape, offsets_of(item, kv_heads, shape), scratch.data());
    }
  });
}

struct AttentionFunction : torch::autograd::Function<AttentionFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q_any,
                            const at::Tensor& k_any, const at::Tensor& v_any,
                            const Documents& documents) {
    const at::Tensor q = q_any.contiguous(), k = k_any.contiguous(), v = v_any.contiguous();
    at::Tensor out = at::empty_like(q);
    at::Tensor log_sums =
        at::empty({q.size(0), q.size(2), q.size(1)},
                  q.options().dtype(q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat));
    on_cpu(q, [&]<class T>(T) {
      const kernels::BlockKernels<T>& set = kernels::block_kernels<T>();
      for_kv_heads<T>(q, k, documents.starts_BT,
                      [&](const auto& shape, const Offsets& at, auto* scratch) {
                        set.attention(const_data<T>(q) + at.q, const_data<T>(k) + at.kv,
                                      const_data<T>(v) + at.kv, mutable_data<T>(out) + at.q,
                                      mutable_data<Wide<T>>(log_sums) + at.log_sums, shape,
                                      static_cast<Wide<T>>(scale_of(q)), scratch, set.multiply);
                      });
    });
    context->save_for_backward({q, k, v, out, log_sums, documents.starts_BT});
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2], &out = saved[3];
    const at::Tensor grad_out = grads[0].contiguous();
    at::Tensor grad_q = at::empty_like(q), grad_k = at::empty_like(k), grad_v = at::empty_like(v);
    on_cpu(q, [&]<class T>(T) {
      const kernels::BlockKernels<T>& set = kernels::block_kernels<T>();
      for_kv_heads<T>(q, k, saved[5], [&](const auto& shape, const Offsets& at, auto* scratch) {
        const kernels::AttentionTensors<T> tensors{
            const_data<T>(q) + at.q,        const_data<T>(k) + at.kv,
            const_data<T>(v) + at.kv,       const_data<T>(out) + at.q,
            const_data<T>(grad_out) + at.q, const_data<Wide<T>>(saved[4]) + at.log_sums,
            mutable_data<T>(grad_q) + at.q, mutable_data<T>(grad_k) + at.kv,
            mutable_data<T>(grad_v) + at.kv};
        set.attention_backward(tensors, shape, static_cast<Wide<T>>(scale_of(q)), scratch,
                               set.multiply);
      });
    });
    return {grad_q, grad_k, grad_v, {}};
  }
};

bool has_kernels(const at::Tensor& q_BTNH) {
  bool has = false;
  on_cpu(q_BTNH, [&]<class T>(T) { has = kernels::block_kernels<T>().attention != nullptr; });
  return has;
}

}  // namespace

at::Tensor attention_by_aten(const at::Tensor& q_BTNH, const at::Tensor& k_BTKH,
                             const at::Tensor& v_BTKH, bool is_causal,
                             const std::optional<at::Tensor>& visible_TT) {
  return at::scaled_dot_product_attention(widen(q_BTNH).transpose(1, 2),
                                          widen(k_BTKH).transpose(1, 2),
                                          widen(v_BTKH).transpose(1, 2), visible_TT, 0.0, is_causal,
                                          scale_of(q_BTNH), q_BTNH.size(2) != k_BTKH.size(2))
      .to(q_BTNH.scalar_type())
      .transpose(1, 2);
}

namespace {

// Whether the starts are those of documents; a sliding window's positions start inside a document.
bool are_documents(const int64_t* starts, int64_t positions) {
  for (int64_t t = 0; t < positions; ++t)
    if (starts[starts[t]] != starts[t]) return false;
  return true;
}

bool are_all_documents(const at::Tensor& starts_BT) {
  const auto* starts = starts_BT.const_data_ptr<int64_t>();
  for (int64_t b = 0; b < starts_BT.size(0); ++b)
    if (!are_documents(starts + b * starts_BT.size(1), starts_BT.size(1))) return false;
  return true;
}

// The first position of each document among the B T positions, and B T; and the longest document.
struct PackedDocuments {
  at::Tensor begins;  // int32, on the device
  int64_t longest = 0;
};

PackedDocuments pack(const at::Tensor& starts_BT, at::Device device) {
  const auto* starts = starts_BT.const_data_ptr<int64_t>();
  std::vector<int32_t> begins;
  for (int64_t i = 0; i < starts_BT.numel(); ++i)
    if (starts[i] == i % starts_BT.size(1)) begins.push_back(static_cast<int32_t>(i));
  begins.push_back(static_cast<int32_t>(starts_BT.numel()));
  int64_t longest = 0;
  for (size_t i = 1; i < begins.size(); ++i)
    longest = std::max<int64_t>(longest, begins[i] - begins[i - 1]);
  const at::Tensor host = at::tensor(begins, at::kInt);
  return {host.pin_memory().to(device, /*non_blocking=*/true), longest};
}

// The attention of all documents of all sequences in one call of ATen's flash attention.
at::Tensor by_flash(const at::Tensor& q_BTNH, const at::Tensor& k_BTKH, const at::Tensor& v_BTKH,
                    const Documents& documents) {
  const PackedDocuments packed = pack(documents.starts_BT, q_BTNH.device());
  const std::optional<double> scale = scale_of(q_BTNH);
  return std::get<0>(at::_flash_attention_forward(
                         q_BTNH.flatten(0, 1), k_BTKH.flatten(0, 1), v_BTKH.flatten(0, 1),
                         packed.begins, packed.begins, packed.longest, packed.longest,
                         /*dropout_p=*/0.0, /*is_causal=*/true, /*return_debug_mask=*/false, scale))
      .view(q_BTNH.sizes());
}

// The attention of one sequence whose positions see all positions from their starts on.
at::Tensor by_mask(const at::Tensor& q_1TNH, const at::Tensor& k_1TKH, const at::Tensor& v_1TKH,
                   const at::Tensor& starts_T) {
  const at::Tensor positions_T = at::arange(q_1TNH.size(1), at::kLong);
  const at::Tensor visible_TT =
      positions_T.unsqueeze(0)
          .ge(starts_T.unsqueeze(1))
          .logical_and_(positions_T.unsqueeze(0).le(positions_T.unsqueeze(1)));
  return attention_by_aten(q_1TNH, k_1TKH, v_1TKH, false, visible_TT.to(q_1TNH.device()));
}

// The attention of one sequence with documents that begin at `starts`.
at::Tensor by_documents(const at::Tensor& q_1TNH, const at::Tensor& k_1TKH,
                        const at::Tensor& v_1TKH, const int64_t* starts) {
  const int64_t positions = q_1TNH.size(1);
  std::vector<at::Tensor> results;
  for (int64_t begin = 0, end = 0; begin < positions; begin = end) {
    for (end = begin + 1; end < positions && starts[end] <= begin;) ++end;
    const auto part = [&](const at::Tensor& x) { return x.narrow(1, begin, end - begin); };
    results.push_back(attention_by_aten(part(q_1TNH), part(k_1TKH), part(v_1TKH), true));
  }
  return at::cat(results, 1);
}

}  // namespace

at::Tensor causal_attention_by_aten(const at::Tensor& q_BTNH, const at::Tensor& k_BTKH,
                                    const at::Tensor& v_BTKH, const Documents& documents) {
  if (!documents.defined()) return attention_by_aten(q_BTNH, k_BTKH, v_BTKH, true);
  if (kernels::gpu::has_flash_attention(q_BTNH) && are_all_documents(documents.starts_BT))
    return by_flash(q_BTNH, k_BTKH, v_BTKH, documents);
  std::vector<at::Tensor> results;
  for (int64_t b = 0; b < q_BTNH.size(0); ++b) {
    const auto sequence = [b](const at::Tensor& x) { return x.narrow(0, b, 1); };
    const at::Tensor starts_T = documents.starts_BT.select(0, b);
    const auto* starts = starts_T.const_data_ptr<int64_t>();
    const at::Tensor q = sequence(q_BTNH), k = sequence(k_BTKH), v = sequence(v_BTKH);
    results.push_back(are_documents(starts, q.size(1)) ? by_documents(q, k, v, starts)
                                                       : by_mask(q, k, v, starts_T));
  }
  return at::cat(results, 0);
}

at::Tensor causal_attention(const at::Tensor& q_BTNH, const at::Tensor& k_BTKH,
                            const at::Tensor& v_BTKH, const Documents& documents) {
  return has_kernels(q_BTNH) ? AttentionFunction::apply(q_BTNH, k_BTKH, v_BTKH, documents)
                             : causal_attention_by_aten(q_BTNH, k_BTKH, v_BTKH, documents);
}

}  // namespace xffl::llama
