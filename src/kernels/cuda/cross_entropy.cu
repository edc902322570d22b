// R rows of V logits, one thread block per row. A thread block reads its row once for the maximum
// and the sum of exponentials (Milakov & Gimelshein, 2018), and once more to write the gradient.
#include "rows.h"
#include "xffl/kernels/cuda/kernels.h"

namespace xffl::kernels {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int64_t kMaxBlocks = int64_t{1} << 20;
constexpr int64_t kPacksPerThread = 4;

// The sum of exp(x - max) over the numbers that a thread has read. Until the thread has read a
// number above -inf, max is -inf and the sum is 0 (or NaN).
struct Running {
  float max = -INFINITY;
  float sum = 0;

  template <class T, int kCount>
  XFFL_DEVICE void add(const float (&x)[kCount]) {
    float highest = max;
    for (int i = 0; i < kCount; ++i) highest = fmaxf(highest, x[i]);
    sum *= rescaling(highest);
    max = highest;
    // If all numbers are -inf, exp(x - max) would be NaN.
    const float base = highest > -INFINITY ? highest : 0.0f;
    for (int i = 0; i < kCount; ++i) sum += exp_for<T>(x[i] - base);
  }
  /// The factor that rescales the sum to another maximum.
  XFFL_DEVICE float rescaling(float other) const {
    return max > -INFINITY ? expf(max - other) : 1.0f;
  }
};

template <class T, int kCount>
XFFL_KERNEL(kMaxThreads)
cross_entropy_rows(T* logits_RV, const int64_t* labels, float* nll, int64_t rows, int64_t size,
                   int64_t ignore, float scale, bool into_gradient) {
  const int64_t step = static_cast<int64_t>(num_threads()) * kCount;
  for (int64_t row = block_index(); row < rows; row += num_blocks()) {
    T* logits = logits_RV + row * size;
    const int64_t label = labels[row];
    float x[kCount];
    if (label == ignore) {
      if (thread_index() == 0) nll[row] = 0;
      for (float& zero : x) zero = 0;
      for (int64_t i = thread_index() * kCount; into_gradient && i < size; i += step)
        store<kCount>(logits + i, x);
      continue;
    }
    const float target =
        widen(logits[label]);  // read before block_sum's sync; the gradient's writes follow
    Running mine;
    for (int64_t i = thread_index() * kCount; i < size; i += step) {
      load<kCount>(logits + i, x);
      mine.add<T>(x);
    }
    const float max = block_max(mine.max);
    const float sum = block_sum(mine.sum * mine.rescaling(max));
    const float loss = logf(sum) - (target - max);
    if (thread_index() == 0) nll[row] = loss;
    if (!into_gradient) continue;
    const float factor = scale / sum;
    const float at_label = expm1f(-loss) * scale;
    for (int64_t i = thread_index() * kCount; i < size; i += step) {
      load<kCount>(logits + i, x);
      for (int j = 0; j < kCount; ++j) {
        x[j] = exp_for<T>(x[j] - max) * factor;
        if (i + j == label) x[j] = at_label;
      }
      store<kCount>(logits + i, x);
    }
  }
}

}  // namespace

template <class T>
void cross_entropy(const Launch& on, T* logits_RV, const int64_t* labels_R, float* nll_R,
                   int64_t rows, int64_t vocab_size, int64_t ignore, float scale,
                   bool into_gradient) {
  if (rows == 0) return;
  const bool packed = vocab_size % kPack<T> == 0 && is_aligned(logits_RV);
  const int64_t pieces = packed ? vocab_size / kPack<T> : vocab_size;
  const int threads = threads_for((pieces + kPacksPerThread - 1) / kPacksPerThread, kMaxThreads);
  launch(on, "cross_entropy", packed ? cross_entropy_rows<T, kPack<T>> : cross_entropy_rows<T, 1>,
         std::min(rows, kMaxBlocks), threads, logits_RV, labels_R, nll_R, rows, vocab_size, ignore,
         scale, into_gradient);
}

#define XFFL_CROSS_ENTROPY(T)                                                                 \
  template void cross_entropy<T>(const Launch&, T*, const int64_t*, float*, int64_t, int64_t, \
                                 int64_t, float, bool);
XFFL_CROSS_ENTROPY(float)
XFFL_CROSS_ENTROPY(Bf16)
XFFL_CROSS_ENTROPY(Half)

}  // namespace xffl::kernels
