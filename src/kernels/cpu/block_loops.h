// The loops of BlockKernels; functions of several targets inline them.
#pragma once

#include "cpu/attention_loops.h"
#include "cpu/lanes.h"
#include "xffl/kernels/cpu/block.h"

namespace xffl::kernels {

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"

// Calls whole(index) for whole vectors, then part(index, count) for the remainder.
template <class W, class Whole, class Part>
XFFL_LANES void for_lanes(int64_t size, const Whole& whole, const Part& part) {
  int64_t i = 0;
  for (; i + kLanes<W> <= size; i += kLanes<W>) whole(i);
  if (i < size) part(i, size - i);
}

template <class T>
struct BlockLoops {
  using W = Wide<T>;
  using V = Lanes<W>;

  // Runs `body(i, read, write)` over a row: read and write move a vector or the row's last part.
  template <class Body>
  XFFL_LANES static void over(int64_t size, const Body& body) {
    for_lanes<W>(
        size,
        [&](int64_t i) [[gnu::always_inline]] {
          body(
              i, [](const auto* from) [[gnu::always_inline]] { return load(from); },
              [](auto* to, V values) [[gnu::always_inline]] { store(to, values); });
        },
        [&](int64_t i, int64_t count) [[gnu::always_inline]] {
          body(
              i,
              [count](const auto* from) [[gnu::always_inline]] { return load_part(from, count); },
              [count](auto* to, V values)
                  [[gnu::always_inline]] { store_part(to, values, count); });
        });
  }

  // Runs a `body` that may process an element twice. In a row of at least one vector, the last
  // vector begins early and ends with the row.
  template <class Body>
  XFFL_LANES static void over_twice(int64_t size, const Body& body) {
    if (size < kLanes<W>) return over(size, body);
    const auto read = [](const auto* from) [[gnu::always_inline]] { return load(from); };
    const auto write = [](auto* to, V values) [[gnu::always_inline]] { store(to, values); };
    for (int64_t i = 0; i < size; i += kLanes<W>) body(std::min(i, size - kLanes<W>), read, write);
  }

  XFFL_LANES static void rms_norm(const T* x, const T* delta, const T* w, T* sum, T* y, W* inverse,
                                  int64_t rows, int64_t width, W epsilon) {
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t at = row * width;
      V squares{};
      const T* source = x + at;
      if (delta != nullptr) {
        over(width, [&](int64_t i, const auto& read, const auto& write) [[gnu::always_inline]] {
          const V s = rounded_to<T>(read(x + at + i) + read(delta + at + i));
          write(sum + at + i, s);
          squares += s * s;
        });
        source = sum + at;
      } else {
        over(width, [&](int64_t i, const auto& read, const auto&) [[gnu::always_inline]] {
          const V s = read(source + i);
          squares += s * s;
        });
      }
      const W r = 1 / std::sqrt(sum_of<W>(squares) / static_cast<W>(width) + epsilon);
      inverse[row] = r;
      over(width, [&](int64_t i, const auto& read, const auto& write) [[gnu::always_inline]] {
        write(y + at + i, rounded_to<T>(read(source + i) * r) * read(w + i));
      });
    }
  }

  // Gradient of y = w n with n = x r: dx = r (w dy - n mean(w dy n)).
  XFFL_LANES static void rms_norm_backward(const T* grad_y, const T* grad_sum, const T* x,
                                           const W* inverse, const T* w, T* grad_x, W* grad_w,
                                           int64_t rows, int64_t width) {
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t at = row * width;
      const W r = inverse[row];
      V products{};
      over(width, [&](int64_t i, const auto& read, const auto& write) [[gnu::always_inline]] {
        const V p = read(grad_y + at + i) * (read(x + at + i) * r);
        write(grad_w + i, read(grad_w + i) + p);
        products += p * read(w + i);
      });
      const W mean = sum_of<W>(products) / static_cast<W>(width) * r;
      over(width, [&](int64_t i, const auto& read, const auto& write) [[gnu::always_inline]] {
        V g = (read(grad_y + at + i) * read(w + i) - read(x + at + i) * mean) * r;
        if (grad_sum != nullptr) g += read(grad_sum + at + i);
        write(grad_x + at + i, g);
      });
    }
  }

  XFFL_LANES static void swiglu(const T* gate, const T* up, T* y, int64_t size) {
    over(size, [&](int64_t i, const auto& read, const auto& write) [[gnu::always_inline]] {
      const V x = read(gate + i);
      write(y + i, rounded_to<T>(x / (exp_lanes(-x) + W{1})) * read(up + i));
    });
  }

  XFFL_LANES static void swiglu_backward(const T* grad_y, const T* gate, const T* up, T* grad_gate,
                                         T* grad_up, int64_t size) {
    over(size, [&](int64_t i, const auto& read, const auto& write) [[gnu::always_inline]] {
      const V g = read(grad_y + i);
      const V x = read(gate + i);
      const V sigmoid = W{1} / (exp_lanes(-x) + W{1});
      write(grad_up + i, g * (x * sigmoid));
      write(grad_gate + i, g * read(up + i) * (sigmoid * (x * (W{1} - sigmoid) + W{1})));
    });
  }

  XFFL_LANES static void rope(const T* x, const T* cos, const T* sin, T* y, int64_t heads,
                              int64_t half, W sign) {
    for (int64_t head = 0; head < heads; ++head) {
      const T* first = x + head * 2 * half;
      T* out = y + head * 2 * half;
      const auto turn = [&](int64_t i, const auto& read, const auto& write) [[gnu::always_inline]] {
        const V c = read(cos + i);
        const V s = read(sin + i) * sign;
        const V x1 = read(first + i);
        const V x2 = read(first + half + i);
        write(out + i, x1 * c - x2 * s);
        write(out + half + i, x2 * c + x1 * s);
      };
      over_twice(half, turn);
    }
  }

  XFFL_LANES static W cross_entropy(T* logits, int64_t size, int64_t label, W scale, W* scratch) {
    const int64_t whole = size / kLanes<W> * kLanes<W>;
    V maxima = broadcast<W>(load_one(logits));
    for (int64_t i = 0; i < whole; i += kLanes<W>) {
      const V x = load(logits + i);
      maxima = x > maxima ? x : maxima;
    }
    W max = max_of<W>(maxima);
    for (int64_t i = whole; i < size; ++i) max = std::fmax(max, load_one(logits + i));
    const W target = load_one(logits + label) - max;
    V sums{};
    for (int64_t i = 0; i < whole; i += kLanes<W>) {
      const V e = exp_lanes(load(logits + i) - max);
      sums += e;
      if (scratch != nullptr) store(scratch + i, e);
    }
    W sum = sum_of<W>(sums);
    for (int64_t i = whole; i < size; ++i) {
      const W e = std::exp(load_one(logits + i) - max);
      sum += e;
      if (scratch != nullptr) scratch[i] = e;
    }
    const W nll = std::log(sum) - target;
    if (scratch == nullptr) return nll;
    const W factor = scale / sum;
    over(size, [&](int64_t i, const auto& read, const auto& write)
                   [[gnu::always_inline]] { write(logits + i, read(scratch + i) * factor); });
    store_one(logits + label, std::expm1(-nll) * scale);
    return nll;
  }

  XFFL_LANES static void accumulate(const T* update, W* sum, int64_t size, W scale,
                                    bool overwrite) {
    over(size, [&](int64_t i, const auto& read, const auto& write) [[gnu::always_inline]] {
      const V u = read(update + i) * scale;
      write(sum + i, overwrite ? u : read(sum + i) + u);
    });
  }
};

#pragma GCC diagnostic pop

}  // namespace xffl::kernels

/// The initializer of a BlockKernels<T>. The compiler compiles the lambdas for the target in force
/// at the macro's use.
#define XFFL_BLOCK_KERNELS(T)                                                                     \
  {                                                                                               \
    [](const T* x, const T* delta, const T* w, T* sum, T* y, Wide<T>* inverse, int64_t rows,      \
       int64_t width, Wide<T> epsilon) {                                                          \
      BlockLoops<T>::rms_norm(x, delta, w, sum, y, inverse, rows, width, epsilon);                \
    },                                                                                            \
        [](const T* grad_y, const T* grad_sum, const T* x, const Wide<T>* inverse, const T* w,    \
           T* grad_x, Wide<T>* grad_w, int64_t rows, int64_t width) {                             \
          BlockLoops<T>::rms_norm_backward(grad_y, grad_sum, x, inverse, w, grad_x, grad_w, rows, \
                                           width);                                                \
        },                                                                                        \
        [](const T* gate, const T* up, T* y, int64_t size) {                                      \
          BlockLoops<T>::swiglu(gate, up, y, size);                                               \
        },                                                                                        \
        [](const T* grad_y, const T* gate, const T* up, T* grad_gate, T* grad_up, int64_t size) { \
          BlockLoops<T>::swiglu_backward(grad_y, gate, up, grad_gate, grad_up, size);             \
        },                                                                                        \
        [](const T* x, const T* cos, const T* sin, T* y, int64_t heads, int64_t half,             \
           Wide<T> sign) { BlockLoops<T>::rope(x, cos, sin, y, heads, half, sign); },             \
        [](T* logits, int64_t size, int64_t label, Wide<T> scale, Wide<T>* scratch) {             \
          return BlockLoops<T>::cross_entropy(logits, size, label, scale, scratch);               \
        },                                                                                        \
        [](const T* update, Wide<T>* sum, int64_t size, Wide<T> scale, bool overwrite) {          \
          BlockLoops<T>::accumulate(update, sum, size, scale, overwrite);                         \
        },                                                                                        \
  }

/// Sets the fields of `set` that XFFL_BLOCK_KERNELS leaves null.
#define XFFL_ATTENTION(T, set)                                                                     \
  set.multiply = [](int64_t rows, int64_t width, int64_t depth, const Wide<T>* a, int64_t a_row,   \
                    int64_t a_step, const Wide<T>* b, int64_t b_row, Wide<T>* c, int64_t c_row,    \
                    bool add) {                                                                    \
    multiply_by_tiles<AttentionLoops<T>>(rows, width, depth, a, a_row, a_step, b, b_row, c, c_row, \
                                         add);                                                     \
  };                                                                                               \
  set.attention = [](const T* q, const T* k, const T* v, T* out, Wide<T>* log_sums,                \
                     const AttentionShape& shape, Wide<T> scale, Wide<T>* scratch,                 \
                     Multiply<Wide<T>> multiply) {                                                 \
    AttentionLoops<T>::forward(q, k, v, out, log_sums, shape, scale, scratch, multiply);           \
  };                                                                                               \
  set.attention_backward = [](const AttentionTensors<T>& tensors, const AttentionShape& shape,     \
                              Wide<T> scale, Wide<T>* scratch, Multiply<Wide<T>> multiply) {       \
    AttentionLoops<T>::backward(tensors, shape, scale, scratch, multiply);                         \
  };
