// N rows of D elements, one thread block per row; C partial sums of the weight's gradient.
//
// How it works: if one pack holds a thread's part of a row (kWhole), the thread reads the part
// once. A thread block of the backward pass takes every C-th row and keeps its sum of the weight's
// gradient. A second kernel adds the C sums in order.
#include "rows.h"
#include "xffl/kernels/cuda/kernels.h"

namespace xffl::kernels {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int64_t kMaxBlocks = int64_t{1} << 20;

template <class T, int kCount, bool kWhole>
XFFL_KERNEL(kMaxThreads)
rms_norm_rows(const T* x, const T* delta, const T* w, T* sum, T* y, float* inverse, int64_t rows,
              int64_t width, float epsilon) {
  const int64_t step = static_cast<int64_t>(num_threads()) * kCount;
  for (int64_t row = block_index(); row < rows; row += num_blocks()) {
    const int64_t at = row * width;
    const T* source = delta == nullptr ? x + at : sum + at;
    float kept[kCount] = {}, squares = 0;
    for (int64_t i = thread_index() * kCount; i < width; i += step) {
      load<kCount>(x + at + i, kept);
      if (delta != nullptr) {
        float d[kCount];
        load<kCount>(delta + at + i, d);
        for (int j = 0; j < kCount; ++j) kept[j] = rounded_to<T>(kept[j] + d[j]);
        store<kCount>(sum + at + i, kept);
      }
      for (int j = 0; j < kCount; ++j) squares = fmaf(kept[j], kept[j], squares);
    }
    const float r = 1.0f / sqrtf(block_sum(squares) / static_cast<float>(width) + epsilon);
    if (thread_index() == 0) inverse[row] = r;
    for (int64_t i = thread_index() * kCount; i < width; i += step) {
      float weights[kCount];
      load<kCount>(w + i, weights);
      if constexpr (!kWhole) load<kCount>(source + i, kept);
      for (int j = 0; j < kCount; ++j) weights[j] *= rounded_to<T>(kept[j] * r);
      store<kCount>(y + at + i, weights);
    }
  }
}

// Gradient of y = w n with n = x r: dx = r (w dy - n mean(w dy n)).
template <class T, int kCount, bool kWhole>
XFFL_KERNEL(kMaxThreads)
rms_norm_backward_rows(const T* grad_y, const T* grad_sum, const T* x, const float* inverse,
                       const T* w, T* grad_x, float* partial_CD, int64_t rows, int64_t width) {
  const int64_t step = static_cast<int64_t>(num_threads()) * kCount;
  float* partial = partial_CD + block_index() * width;
  float grad_w[kCount] = {};
  for (int64_t row = block_index(); row < rows; row += num_blocks()) {
    const int64_t at = row * width;
    const float r = inverse[row];
    float g[kCount] = {}, v[kCount] = {}, weights[kCount] = {}, dot = 0;
    for (int64_t i = thread_index() * kCount; i < width; i += step) {
      load<kCount>(grad_y + at + i, g);
      load<kCount>(x + at + i, v);
      load<kCount>(w + i, weights);
      if (!kWhole && row != block_index()) load<kCount>(partial + i, grad_w);
      for (int j = 0; j < kCount; ++j) {
        const float product = g[j] * (v[j] * r);
        grad_w[j] = (kWhole || row != block_index() ? grad_w[j] : 0.0f) + product;
        dot = fmaf(product, weights[j], dot);
      }
      if constexpr (!kWhole) store<kCount>(partial + i, grad_w);
    }
    const float mean = block_sum(dot) / static_cast<float>(width) * r;
    for (int64_t i = thread_index() * kCount; i < width; i += step) {
      if constexpr (!kWhole) {
        load<kCount>(grad_y + at + i, g);
        load<kCount>(x + at + i, v);
        load<kCount>(w + i, weights);
      }
      float further[kCount] = {};
      if (grad_sum != nullptr) load<kCount>(grad_sum + at + i, further);
      for (int j = 0; j < kCount; ++j) further[j] += (g[j] * weights[j] - v[j] * mean) * r;
      store<kCount>(grad_x + at + i, further);
    }
  }
  if (kWhole && thread_index() * kCount < width)
    store<kCount>(partial + thread_index() * kCount, grad_w);
}

constexpr int kColumnGroups = 8;

// A thread block adds the C rows of 32 columns.
XFFL_KERNEL(kColumnGroups* kWarp)
sum_columns(const float* partial_CD, float* sum_D, int64_t count, int64_t width) {
  XFFL_SHARED float parts[kColumnGroups][kWarp];
  const int lane = thread_index() % kWarp;
  const int group = thread_index() / kWarp;
  const int64_t column = block_index() * kWarp + lane;
  float sum = 0;
  for (int64_t i = group; column < width && i < count; i += kColumnGroups)
    sum += partial_CD[i * width + column];
  parts[group][lane] = sum;
  sync();
  if (group > 0 || column >= width) return;
  for (int other = 1; other < kColumnGroups; ++other) sum += parts[other][lane];
  sum_D[column] = sum;
}

template <class T>
struct RowForm {
  RowForm(int64_t width, bool aligned)
      : packed(aligned && width % kPack<T> == 0),
        pieces(packed ? width / kPack<T> : width),
        threads(threads_for(pieces, kMaxThreads)),
        whole(pieces <= threads) {}
  bool packed;
  int64_t pieces;
  int threads;
  bool whole;
};

constexpr int64_t kMostPartials = 528;  // four times an H100's multiprocessors
constexpr int64_t kRowsPerPartial = 8;

}  // namespace

int64_t rms_norm_scratch_rows(int64_t rows) {
  return std::clamp(rows / kRowsPerPartial, int64_t{1}, kMostPartials);
}

template <class T>
void rms_norm(const Launch& on, const T* x_ND, const T* delta_ND, const T* w_D, T* sum_ND, T* y_ND,
              float* inverse_N, int64_t rows, int64_t width, float epsilon) {
  if (rows * width == 0) return;
  const RowForm<T> form(width, is_aligned(x_ND, delta_ND, w_D, sum_ND, y_ND));
  auto kernel = form.whole ? rms_norm_rows<T, 1, true> : rms_norm_rows<T, 1, false>;
  if (form.packed)
    kernel = form.whole ? rms_norm_rows<T, kPack<T>, true> : rms_norm_rows<T, kPack<T>, false>;
  launch(on, "rms_norm", kernel, std::min(rows, kMaxBlocks), form.threads, x_ND, delta_ND, w_D,
         sum_ND, y_ND, inverse_N, rows, width, epsilon);
}

template <class T>
void rms_norm_backward(const Launch& on, const T* grad_y_ND, const T* grad_sum_ND, const T* x_ND,
                       const float* inverse_N, const T* w_D, T* grad_x_ND, float* grad_w_D,
                       float* scratch, int64_t rows, int64_t width) {
  if (width == 0) return;
  const RowForm<T> form(width, is_aligned(grad_y_ND, grad_sum_ND, x_ND, w_D, grad_x_ND, scratch));
  auto kernel =
      form.whole ? rms_norm_backward_rows<T, 1, true> : rms_norm_backward_rows<T, 1, false>;
  if (form.packed) {
    kernel = form.whole ? rms_norm_backward_rows<T, kPack<T>, true>
                        : rms_norm_backward_rows<T, kPack<T>, false>;
  }
  const int64_t partials = rows == 0 ? 0 : rms_norm_scratch_rows(rows);
  if (rows > 0) {
    launch(on, "rms_norm_backward", kernel, partials, form.threads, grad_y_ND, grad_sum_ND, x_ND,
           inverse_N, w_D, grad_x_ND, scratch, rows, width);
  }
  launch(on, "sum_columns", sum_columns, (width + kWarp - 1) / kWarp, kColumnGroups * kWarp,
         static_cast<const float*>(scratch), grad_w_D, partials, width);
}

#define XFFL_RMS_NORM(T)                                                                          \
  template void rms_norm<T>(const Launch&, const T*, const T*, const T*, T*, T*, float*, int64_t, \
                            int64_t, float);                                                      \
  template void rms_norm_backward<T>(const Launch&, const T*, const T*, const T*, const float*,   \
                                     const T*, T*, float*, float*, int64_t, int64_t);
XFFL_RMS_NORM(float)
XFFL_RMS_NORM(Bf16)
XFFL_RMS_NORM(Half)

}  // namespace xffl::kernels
