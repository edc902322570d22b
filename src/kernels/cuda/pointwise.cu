// SwiGLU, rotary embedding, and sums of updates.
#include "rows.h"
#include "xffl/kernels/cuda/kernels.h"

namespace xffl::kernels {
namespace {

template <class T>
struct Swiglu {
  const T *gate, *up;
  T* y;

  template <int kCount>
  XFFL_DEVICE void run(int64_t at) const {
    float x[kCount], u[kCount];
    load<kCount>(gate + at, x);
    load<kCount>(up + at, u);
    for (int i = 0; i < kCount; ++i)
      x[i] = rounded_to<T>(divide_for<T>(x[i], 1.0f + exp_for<T>(-x[i]))) * u[i];
    store<kCount>(y + at, x);
  }
};

template <class T>
struct SwigluBackward {
  const T *grad_y, *gate, *up;
  T *grad_gate, *grad_up;

  template <int kCount>
  XFFL_DEVICE void run(int64_t at) const {
    float g[kCount], x[kCount], u[kCount];
    load<kCount>(grad_y + at, g);
    load<kCount>(gate + at, x);
    load<kCount>(up + at, u);
    for (int i = 0; i < kCount; ++i) {
      const float sigmoid = divide_for<T>(1.0f, 1.0f + exp_for<T>(-x[i]));
      const float grad = g[i];
      g[i] = grad * u[i] * (sigmoid * (x[i] * (1.0f - sigmoid) + 1.0f));
      u[i] = grad * (x[i] * sigmoid);
    }
    store<kCount>(grad_gate + at, g);
    store<kCount>(grad_up + at, u);
  }
};

template <class T>
struct Accumulate {
  const T* update;
  float* sum;
  float scale;
  bool overwrite;

  template <int kCount>
  XFFL_DEVICE void run(int64_t at) const {
    float u[kCount], s[kCount] = {};
    load<kCount>(update + at, u);
    if (!overwrite) load<kCount>(sum + at, s);
    for (int i = 0; i < kCount; ++i) s[i] = overwrite ? u[i] * scale : fmaf(u[i], scale, s[i]);
    store<kCount>(sum + at, s);
  }
};

// A thread block rotates one position of a sequence; each thread rotates kCount pairs of a head.
template <class T, int kCount>
XFFL_KERNEL(kElementThreads)
rope_positions(const T* x, HeadsShape shape, const T* cos, const T* sin, T* y, float sign) {
  const int pairs = static_cast<int>(shape.half / kCount);
  const int work = static_cast<int>(shape.heads) * pairs;
  for (int64_t token = block_index(); token < shape.batch * shape.positions;
       token += num_blocks()) {
    const int64_t angle = token % shape.angles * shape.half;
    const T* from = x + token / shape.positions * shape.batch_stride +
                    token % shape.positions * shape.position_stride;
    T* to = y + token * shape.heads * shape.half * 2;
    for (int item = thread_index(); item < work; item += num_threads()) {
      const int head = item / pairs;
      const int pair = item % pairs * kCount;
      float c[kCount], s[kCount], x1[kCount], x2[kCount];
      load<kCount>(cos + angle + pair, c);
      load<kCount>(sin + angle + pair, s);
      load<kCount>(from + head * shape.head_stride + pair, x1);
      load<kCount>(from + head * shape.head_stride + shape.half + pair, x2);
      for (int i = 0; i < kCount; ++i) {
        const float first = x1[i], second = x2[i], turn = s[i] * sign;
        x1[i] = first * c[i] - second * turn;
        x2[i] = second * c[i] + first * turn;
      }
      store<kCount>(to + head * shape.half * 2 + pair, x1);
      store<kCount>(to + head * shape.half * 2 + shape.half + pair, x2);
    }
  }
}

}  // namespace

template <class T>
void swiglu(const Launch& on, const T* gate, const T* up, T* y, int64_t size) {
  launch_elementwise<kPack<T>>(on, "swiglu", size, is_aligned(gate, up, y), Swiglu<T>{gate, up, y});
}

template <class T>
void swiglu_backward(const Launch& on, const T* grad_y, const T* gate, const T* up, T* grad_gate,
                     T* grad_up, int64_t size) {
  launch_elementwise<kPack<T>>(on, "swiglu_backward", size,
                               is_aligned(grad_y, gate, up, grad_gate, grad_up),
                               SwigluBackward<T>{grad_y, gate, up, grad_gate, grad_up});
}

template <class T>
void accumulate(const Launch& on, const T* update, float* sum, int64_t size, float scale,
                bool overwrite) {
  launch_elementwise<kPack<T>>(on, "accumulate", size, is_aligned(update, sum),
                               Accumulate<T>{update, sum, scale, overwrite});
}

template <class T>
void rope(const Launch& on, const T* x_BTNH, const HeadsShape& shape, const T* cos_AF,
          const T* sin_AF, T* y_BTNH, float sign) {
  constexpr int64_t kMost = int64_t{1} << 20;
  const int64_t tokens = shape.batch * shape.positions;
  if (tokens * shape.heads * shape.half == 0) return;
  const auto fits = [](int64_t stride) { return stride % kPack<T> == 0; };
  const bool packed = fits(shape.half) && fits(shape.batch_stride) && fits(shape.position_stride) &&
                      fits(shape.head_stride) && is_aligned(x_BTNH, cos_AF, sin_AF, y_BTNH);
  const int64_t work = shape.heads * shape.half / (packed ? kPack<T> : 1);
  launch(on, "rope", packed ? rope_positions<T, kPack<T>> : rope_positions<T, 1>,
         std::min(tokens, kMost), threads_for(work, kElementThreads), x_BTNH, shape, cos_AF, sin_AF,
         y_BTNH, sign);
}

#define XFFL_POINTWISE(T)                                                                         \
  template void swiglu<T>(const Launch&, const T*, const T*, T*, int64_t);                        \
  template void swiglu_backward<T>(const Launch&, const T*, const T*, const T*, T*, T*, int64_t); \
  template void accumulate<T>(const Launch&, const T*, float*, int64_t, float, bool);             \
  template void rope<T>(const Launch&, const T*, const HeadsShape&, const T*, const T*, T*, float);
XFFL_POINTWISE(float)
XFFL_POINTWISE(Bf16)
XFFL_POINTWISE(Half)

}  // namespace xffl::kernels
