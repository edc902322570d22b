// Causal attention of one key/value head with the query heads that share it: the loops of
// BlockKernels' attention.
//
// How it works: the loops copy queries, keys and values to W. Zeros pad the rows to whole vectors
// and the number of rows to whole blocks, so that no loop has a remainder. A block of 32 queries
// computes all its scores up to the diagonal, then their softmax, then the product with the values.
// The block skips the keys before the first document of its queries. No score outlives its block:
// the backward pass computes the scores again from the saved log-sum-exp (Dao et al., 2022).
#pragma once

#include <algorithm>

#include "cpu/lanes.h"
#include "xffl/kernels/cpu/block.h"

namespace xffl::kernels {

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"

inline constexpr int64_t kAttentionBlock = 32;  // queries; a multiple of kTileRows and of all lanes
inline constexpr int64_t kTileRows = 8;

inline int64_t round_up_to(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// The sizes of arrays in the scratch memory: P padded positions, H padded head_dim.
struct AttentionScratch {
  int64_t positions, width;
  explicit AttentionScratch(const AttentionShape& shape)
      : positions(round_up_to(shape.positions, kAttentionBlock)),
        width(round_up_to(shape.head_dim, 16)) {}
  int64_t matrix() const { return positions * width; }
  int64_t scores() const { return kAttentionBlock * positions; }
};

// C_MN (+)= A_MK B_KN by tiles of 8 rows and up to three vectors. M is a multiple of 8, N a
// multiple of the lanes. Loops::tile computes a tile.
template <class Loops, class A, class W>
XFFL_LANES void multiply_by_tiles(int64_t rows, int64_t width, int64_t depth, const A* a,
                                  int64_t a_row, int64_t a_step, const A* b, int64_t b_row, W* c,
                                  int64_t c_row, bool add) {
  constexpr int64_t kL = kLanes<W>;
  for (int64_t n = 0; n < width; n += 3 * kL) {
    const int64_t vectors = (width - n) / kL;
    for (int64_t m = 0; m < rows; m += kTileRows) {
      const A* am = a + m * a_row;
      W* cm = c + m * c_row + n;
      if (vectors >= 3) {
        Loops::template tile<3>(depth, am, a_row, a_step, b + n, b_row, cm, c_row, add);
      } else if (vectors == 2) {
        Loops::template tile<2>(depth, am, a_row, a_step, b + n, b_row, cm, c_row, add);
      } else {
        Loops::template tile<1>(depth, am, a_row, a_step, b + n, b_row, cm, c_row, add);
      }
    }
  }
}

template <class T>
struct AttentionLoops {
  using W = Wide<T>;
  using V = Lanes<W>;
  static constexpr int64_t kL = kLanes<W>;

  // C_8N (+)= A_8K B_KN for kVectors vectors of N; a_row and a_step are A's strides.
  template <int kVectors>
  XFFL_LANES static void tile(int64_t depth, const W* a, int64_t a_row, int64_t a_step, const W* b,
                              int64_t b_row, W* c, int64_t c_row, bool add) {
    V sums[kTileRows][kVectors];
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) sums[r][v] = add ? load(c + r * c_row + v * kL) : V{};
    }
    for (int64_t k = 0; k < depth; ++k) {
      V row[kVectors];
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) row[v] = load(b + k * b_row + v * kL);
#pragma GCC unroll 8
      for (int r = 0; r < kTileRows; ++r) {
        const V factor = broadcast<W>(a[r * a_row + k * a_step]);
#pragma GCC unroll 3
        for (int v = 0; v < kVectors; ++v) sums[r][v] += factor * row[v];
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) store(c + r * c_row + v * kL, sums[r][v]);
    }
  }

  XFFL_LANES static void read(const T* from, int64_t stride, const AttentionShape& shape,
                              W* to_PH) {
    const AttentionScratch size(shape);
    for (int64_t t = 0; t < size.positions; ++t) {
      W* row = to_PH + t * size.width;
      for (int64_t h = 0; h < size.width; h += kL) {
        const int64_t count = std::min(kL, shape.head_dim - h);
        const T* source = from + t * stride + h;
        V values{};
        if (t < shape.positions && count > 0)
          values = count == kL ? load(source) : load_part(source, count);
        store(row + h, values);
      }
    }
  }

  XFFL_LANES static void write(const W* from_PH, W factor, int64_t first, int64_t count,
                               const AttentionShape& shape, T* to, int64_t stride) {
    const int64_t width = AttentionScratch(shape).width;
    for (int64_t t = first; t < std::min(first + count, shape.positions); ++t) {
      const W* row = from_PH + (t - first) * width;
      T* out = to + t * stride;
      int64_t h = 0;
      for (; h + kL <= shape.head_dim; h += kL) store(out + h, load(row + h) * factor);
      if (h < shape.head_dim) store_part(out + h, load(row + h) * factor, shape.head_dim - h);
    }
  }

  XFFL_LANES static void transpose(const W* from_PH, const AttentionScratch& size, W* to_HP) {
    for (int64_t p = 0; p < size.positions; p += kL) {
      for (int64_t h = 0; h < size.width; ++h) {
        for (int64_t i = 0; i < kL; ++i)
          to_HP[h * size.positions + p + i] = from_PH[(p + i) * size.width + h];
      }
    }
  }

  // The visible keys [begin, end) among the `count` keys of a row of scores.
  struct Seen {
    int64_t begin, end, count;
  };
  // The keys [low, low + count) that the queries [first, first + kAttentionBlock) see.
  struct BlockKeys {
    const int64_t* starts;
    int64_t positions, first, low, count;

    BlockKeys(const AttentionShape& shape, int64_t first_query)
        : starts(shape.starts), positions(shape.positions), first(first_query) {
      low = start(first) / kL * kL;
      count = first + kAttentionBlock - low;
    }
    int64_t start(int64_t query) const {
      return starts == nullptr ? 0 : starts[std::min(query, positions - 1)];
    }
    Seen seen(int64_t query) const { return {start(query) - low, query + 1 - low, count}; }
  };

  // Turns a row's scores into e^(scale s - shift), zero for invisible keys; returns their sum.
  XFFL_LANES static W exponentiate(W* row, const Seen& seen, W scale, W shift) {
    V sums{};
    for (int64_t t = 0; t < seen.count; t += kL) {
      const V e =
          only_lanes<W>(exp_lanes(load(row + t) * scale - shift), seen.begin - t, seen.end - t, 0);
      sums += e;
      store(row + t, e);
    }
    return sum_of<W>(sums);
  }

  XFFL_LANES static W max_score(const W* row, const Seen& seen) {
    V maxima = broadcast<W>(row[seen.begin]);
    for (int64_t t = 0; t < seen.count; t += kL) {
      const V s = only_lanes<W>(load(row + t), seen.begin - t, seen.end - t, row[seen.begin]);
      maxima = s > maxima ? s : maxima;
    }
    return max_of<W>(maxima);
  }

  XFFL_LANES static void forward(const T* q, const T* k, const T* v, T* out, W* log_sums,
                                 const AttentionShape& shape, W scale, W* scratch,
                                 Multiply<W> product) {
    const AttentionScratch size(shape);
    W* const k_HP = scratch;
    W* const v_PH = k_HP + size.matrix();
    W* const q_PH = v_PH + size.matrix();
    W* const scores = q_PH + size.matrix();
    W* const block = scores + size.scores();
    read(k, shape.kv_stride, shape, q_PH);
    transpose(q_PH, size, k_HP);
    read(v, shape.kv_stride, shape, v_PH);
    for (int64_t head = 0; head < shape.group; ++head) {
      read(q + head * shape.head_dim, shape.q_stride, shape, q_PH);
      for (int64_t first = 0; first < size.positions; first += kAttentionBlock) {
        const BlockKeys keys(shape, first);
        product(kAttentionBlock, keys.count, size.width, q_PH + first * size.width, size.width, 1,
                k_HP + keys.low, size.positions, scores, size.positions, false);
        W sums[kAttentionBlock];
        for (int64_t r = 0; r < kAttentionBlock; ++r) {
          W* row = scores + r * size.positions;
          const Seen seen = keys.seen(first + r);
          const W shift = max_score(row, seen) * scale;
          sums[r] = exponentiate(row, seen, scale, shift);
          if (first + r < shape.positions)
            log_sums[head * shape.positions + first + r] = shift + std::log(sums[r]);
        }
        product(kAttentionBlock, size.width, keys.count, scores, size.positions, 1,
                v_PH + keys.low * size.width, size.width, block, size.width, false);
        for (int64_t r = 0; r < kAttentionBlock; ++r)
          write(block + r * size.width, 1 / sums[r], first + r, 1, shape,
                out + head * shape.head_dim, shape.q_stride);
      }
    }
  }

  // dS = P (dP - sum(dO O)) scale; overwrites dP.
  XFFL_LANES static void score_gradients(const W* p, W* dp, int64_t keys, W delta, W scale) {
    for (int64_t t = 0; t < keys; t += kL)
      store(dp + t, load(p + t) * (load(dp + t) - delta) * scale);
  }

  XFFL_LANES static W dot(const T* a, const T* b, int64_t size) {
    V sums{};
    int64_t i = 0;
    for (; i + kL <= size; i += kL) sums += load(a + i) * load(b + i);
    if (i < size) sums += load_part(a + i, size - i) * load_part(b + i, size - i);
    return sum_of<W>(sums);
  }

  XFFL_LANES static void backward(const AttentionTensors<T>& x, const AttentionShape& shape,
                                  W scale, W* scratch, Multiply<W> product) {
    const AttentionScratch size(shape);
    const int64_t width = size.width;
    W* const k_PH = scratch;
    W* const k_HP = k_PH + size.matrix();
    W* const v_HP = k_HP + size.matrix();
    W* const q_PH = v_HP + size.matrix();
    W* const grad_PH = q_PH + size.matrix();
    W* const grad_k_PH = grad_PH + size.matrix();
    W* const grad_v_PH = grad_k_PH + size.matrix();
    W* const p = grad_v_PH + size.matrix();
    W* const dp = p + size.scores();
    W* const block = dp + size.scores();
    read(x.v, shape.kv_stride, shape, q_PH);
    transpose(q_PH, size, v_HP);
    read(x.k, shape.kv_stride, shape, k_PH);
    transpose(k_PH, size, k_HP);
    for (int64_t i = 0; i < 2 * size.matrix(); ++i) grad_k_PH[i] = 0;
    for (int64_t head = 0; head < shape.group; ++head) {
      const int64_t offset = head * shape.head_dim;
      read(x.q + offset, shape.q_stride, shape, q_PH);
      read(x.grad_out + offset, shape.q_stride, shape, grad_PH);
      for (int64_t first = 0; first < size.positions; first += kAttentionBlock) {
        const BlockKeys keys(shape, first);
        const int64_t low = keys.low, count = keys.count;
        const W* q_RH = q_PH + first * width;
        const W* grad_RH = grad_PH + first * width;
        product(kAttentionBlock, count, width, q_RH, width, 1, k_HP + low, size.positions, p,
                size.positions, false);
        product(kAttentionBlock, count, width, grad_RH, width, 1, v_HP + low, size.positions, dp,
                size.positions, false);
        for (int64_t r = 0; r < kAttentionBlock; ++r) {
          const int64_t t = first + r;
          W* p_row = p + r * size.positions;
          W* dp_row = dp + r * size.positions;
          if (t >= shape.positions) {
            for (int64_t i = 0; i < count; ++i) p_row[i] = dp_row[i] = 0;
            continue;
          }
          const int64_t at = t * shape.q_stride + offset;
          exponentiate(p_row, keys.seen(t), scale, x.log_sums[head * shape.positions + t]);
          score_gradients(p_row, dp_row, count, dot(x.grad_out + at, x.out + at, shape.head_dim),
                          scale);
        }
        product(count, width, kAttentionBlock, p, 1, size.positions, grad_RH, width,
                grad_v_PH + low * width, width, true);
        product(count, width, kAttentionBlock, dp, 1, size.positions, q_RH, width,
                grad_k_PH + low * width, width, true);
        product(kAttentionBlock, width, count, dp, size.positions, 1, k_PH + low * width, width,
                block, width, false);
        write(block, 1, first, kAttentionBlock, shape, x.grad_q + offset, shape.q_stride);
      }
    }
    write(grad_k_PH, 1, 0, size.positions, shape, x.grad_k, shape.kv_stride);
    write(grad_v_PH, 1, 0, size.positions, shape, x.grad_v, shape.kv_stride);
  }
};

#pragma GCC diagnostic pop

}  // namespace xffl::kernels
