// How it works: as in attention_loops.h, but all factors stay bfloat16. A word holds two
// neighbouring values along the sum: (x[t][2i], x[t][2i + 1]) of one row, or (x[2i][h], x[2i +
// 1][h]) of two rows. The loops round probabilities and their gradients to bfloat16 before a
// product uses them.
#include <immintrin.h>

#include "cpu/attention_loops.h"
#include "cpu/x86.h"

#pragma GCC push_options
#pragma GCC target( \
    "avx2,fma,bmi2,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,prefer-vector-width=512")

namespace xffl::kernels {
namespace {

using Word = uint32_t;

using MultiplyWords = void (*)(int64_t rows, int64_t width, int64_t depth, const Word* a,
                               int64_t a_row, int64_t a_step, const Word* b, int64_t b_row,
                               float* c, int64_t c_row, bool add);

struct WordAttention {
  using Loops = AttentionLoops<Bf16>;
  static constexpr int64_t kL = 16;

  static __m512bh words(const Word* from) {
    __m512bh values;
    std::memcpy(&values, from, sizeof values);
    return values;
  }

  // C_8N (+)= A_8K B_KN for kVectors vectors of N; K counts words.
  template <int kVectors>
  static void tile(int64_t depth, const Word* a, int64_t a_row, int64_t a_step, const Word* b,
                   int64_t b_row, float* c, int64_t c_row, bool add) {
    __m512 sums[kTileRows][kVectors];
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v)
        sums[r][v] = add ? _mm512_loadu_ps(c + r * c_row + v * kL) : _mm512_setzero_ps();
    }
    for (int64_t k = 0; k < depth; ++k) {
      __m512bh row[kVectors];
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) row[v] = words(b + k * b_row + v * kL);
#pragma GCC unroll 8
      for (int r = 0; r < kTileRows; ++r) {
        const __m512bh factor = reinterpret_cast<__m512bh>(
            _mm512_set1_epi32(static_cast<int>(a[r * a_row + k * a_step])));
#pragma GCC unroll 3
        for (int v = 0; v < kVectors; ++v)
          sums[r][v] = _mm512_dpbf16_ps(sums[r][v], factor, row[v]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) _mm512_storeu_ps(c + r * c_row + v * kL, sums[r][v]);
    }
  }

  // Rounds sixteen floats to the nearest bfloat16.
  static Halves16 narrow(const float* from) {
    return reinterpret_cast<Halves16>(_mm512_cvtneps_pbh(_mm512_loadu_ps(from)));
  }

  // Copies rows of whole vectors, without a call for each row.
  static void read_whole_rows(const Bf16* from, int64_t stride, const AttentionShape& shape,
                              Word* to) {
    const AttentionScratch size(shape);
    for (int64_t t = 0; t < size.positions; ++t) {
      for (int64_t h = 0; h < size.width; h += kL) {
        Halves16 values{};
        if (t < shape.positions) std::memcpy(&values, from + t * stride + h, sizeof values);
        std::memcpy(to + (t * size.width + h) / 2, &values, sizeof values);
      }
    }
  }

  // Reads rows of bfloat16 and pads them with zeros: P rows of width / 2 words.
  static void read_rows(const Bf16* from, int64_t stride, const AttentionShape& shape, Word* to) {
    const AttentionScratch size(shape);
    const auto row_bytes = static_cast<size_t>(size.width) * sizeof(Bf16);
    const auto used_bytes = static_cast<size_t>(shape.head_dim) * sizeof(Bf16);
    if (row_bytes == used_bytes) return read_whole_rows(from, stride, shape, to);
    for (int64_t t = 0; t < size.positions; ++t) {
      char* row = reinterpret_cast<char*>(to + t * size.width / 2);
      const size_t copied = t < shape.positions ? used_bytes : 0;
      if (copied != 0) std::memcpy(row, from + t * stride, copied);
      std::memset(row + copied, 0, row_bytes - copied);
    }
  }

  // Transposes the words of read_rows(): width / 2 rows of P words.
  static void transpose(const Word* rows, const AttentionScratch& size, Word* to) {
    const int64_t pairs = size.width / 2;
    for (int64_t p = 0; p < size.positions; p += kL) {
      for (int64_t x = 0; x < pairs; ++x) {
        for (int64_t i = 0; i < kL; ++i) to[x * size.positions + p + i] = rows[(p + i) * pairs + x];
      }
    }
  }

  // Joins the values of two rows to words: P / 2 rows of width words.
  static void join_rows(const Word* rows, const AttentionScratch& size, Word* to) {
    const int64_t pairs = size.width / 2;
    for (int64_t t = 0; t < size.positions; t += 2) {
      const Word* first = rows + t * pairs;
      const Word* second = first + pairs;
      Word* out = to + t / 2 * size.width;
      for (int64_t x = 0; x < pairs; ++x) {
        out[2 * x] = (first[x] & 0xffffu) | (second[x] << 16);
        out[2 * x + 1] = (first[x] >> 16) | (second[x] & 0xffff0000u);
      }
    }
  }

  // Rounds a row of floats to words.
  static void narrow_row(const float* from, int64_t count, Word* to) {
    for (int64_t t = 0; t < count; t += kL) {
      const Halves16 halves = narrow(from + t);
      std::memcpy(to + t / 2, &halves, sizeof halves);
    }
  }

  // Rounds two rows of floats to words, each with a value of both rows.
  static void narrow_two_rows(const float* first, const float* second, int64_t count, Word* to) {
    for (int64_t t = 0; t < count; t += kL) {
      const Words16 both = __builtin_convertvector(narrow(first + t), Words16) |
                           (__builtin_convertvector(narrow(second + t), Words16) << 16);
      std::memcpy(to + t, &both, sizeof both);
    }
  }

  static void forward(const Bf16* q, const Bf16* k, const Bf16* v, Bf16* out, float* log_sums,
                      const AttentionShape& shape, float scale, float* scratch,
                      MultiplyWords product) {
    const AttentionScratch size(shape);
    const int64_t pairs = size.width / 2;
    Word* const q_rows = reinterpret_cast<Word*>(scratch);
    Word* const k_columns = q_rows + size.matrix() / 2;
    Word* const v_joined = k_columns + size.matrix() / 2;
    Word* const p_rows = v_joined + size.matrix() / 2;
    float* const scores = reinterpret_cast<float*>(p_rows + size.scores() / 2);
    float* const block = scores + size.scores();
    read_rows(k, shape.kv_stride, shape, q_rows);
    transpose(q_rows, size, k_columns);
    read_rows(v, shape.kv_stride, shape, q_rows);
    join_rows(q_rows, size, v_joined);
    for (int64_t head = 0; head < shape.group; ++head) {
      read_rows(q + head * shape.head_dim, shape.q_stride, shape, q_rows);
      for (int64_t first = 0; first < size.positions; first += kAttentionBlock) {
        const Loops::BlockKeys keys(shape, first);
        product(kAttentionBlock, keys.count, pairs, q_rows + first * pairs, pairs, 1,
                k_columns + keys.low, size.positions, scores, size.positions, false);
        float sums[kAttentionBlock];
        for (int64_t r = 0; r < kAttentionBlock; ++r) {
          float* row = scores + r * size.positions;
          const Loops::Seen seen = keys.seen(first + r);
          const float shift = Loops::max_score(row, seen) * scale;
          sums[r] = Loops::exponentiate(row, seen, scale, shift);
          narrow_row(row, keys.count, p_rows + r * size.positions / 2);
          if (first + r < shape.positions)
            log_sums[head * shape.positions + first + r] = shift + std::log(sums[r]);
        }
        product(kAttentionBlock, size.width, keys.count / 2, p_rows, size.positions / 2, 1,
                v_joined + keys.low / 2 * size.width, size.width, block, size.width, false);
        for (int64_t r = 0; r < kAttentionBlock; ++r)
          Loops::write(block + r * size.width, 1 / sums[r], first + r, 1, shape,
                       out + head * shape.head_dim, shape.q_stride);
      }
    }
  }

  // The words of one key/value head, and the scratch memory of its query heads and blocks.
  struct Places {
    Word *k_columns, *v_columns, *k_joined;
    Word *q_rows, *q_joined, *grad_rows, *grad_joined;
    Word *p_joined, *ds_joined, *ds_rows;
    float *grad_k, *grad_v, *p, *dp, *block;

    Places(const AttentionScratch& size, float* scratch) {
      Word* next = reinterpret_cast<Word*>(scratch);
      for (Word** place :
           {&k_columns, &v_columns, &k_joined, &q_rows, &q_joined, &grad_rows, &grad_joined}) {
        *place = next;
        next += size.matrix() / 2;
      }
      for (Word** place : {&p_joined, &ds_joined, &ds_rows}) {
        *place = next;
        next += size.scores() / 2;
      }
      grad_k = reinterpret_cast<float*>(next);
      grad_v = grad_k + size.matrix();
      p = grad_v + size.matrix();
      dp = p + size.scores();
      block = dp + size.scores();
    }
  };

  // The gradients of the scores of 32 queries, in the layouts of the products that follow.
  static void block_gradients(const AttentionTensors<Bf16>& x, const AttentionShape& shape,
                              const Loops::BlockKeys& keys, int64_t head, float scale,
                              const Places& at) {
    const int64_t stride = AttentionScratch(shape).positions;
    for (int64_t r = 0; r < kAttentionBlock; ++r) {
      const int64_t t = keys.first + r;
      float* p = at.p + r * stride;
      float* dp = at.dp + r * stride;
      if (t < shape.positions) {
        const int64_t offset = t * shape.q_stride + head * shape.head_dim;
        Loops::exponentiate(p, keys.seen(t), scale, x.log_sums[head * shape.positions + t]);
        Loops::score_gradients(p, dp, keys.count,
                               Loops::dot(x.grad_out + offset, x.out + offset, shape.head_dim),
                               scale);
      } else {
        std::fill_n(p, keys.count, 0.0f);
        std::fill_n(dp, keys.count, 0.0f);
      }
      narrow_row(dp, keys.count, at.ds_rows + r * stride / 2);
      if (r % 2 == 0) continue;
      narrow_two_rows(p - stride, p, keys.count, at.p_joined + r / 2 * stride);
      narrow_two_rows(dp - stride, dp, keys.count, at.ds_joined + r / 2 * stride);
    }
  }

  static void backward(const AttentionTensors<Bf16>& x, const AttentionShape& shape, float scale,
                       float* scratch, MultiplyWords product) {
    const AttentionScratch size(shape);
    const int64_t width = size.width, pairs = width / 2, positions = size.positions;
    const Places at(size, scratch);
    read_rows(x.v, shape.kv_stride, shape, at.q_rows);
    transpose(at.q_rows, size, at.v_columns);
    read_rows(x.k, shape.kv_stride, shape, at.q_rows);
    transpose(at.q_rows, size, at.k_columns);
    join_rows(at.q_rows, size, at.k_joined);
    std::fill_n(at.grad_k, 2 * size.matrix(), 0.0f);
    for (int64_t head = 0; head < shape.group; ++head) {
      const int64_t offset = head * shape.head_dim;
      read_rows(x.q + offset, shape.q_stride, shape, at.q_rows);
      join_rows(at.q_rows, size, at.q_joined);
      read_rows(x.grad_out + offset, shape.q_stride, shape, at.grad_rows);
      join_rows(at.grad_rows, size, at.grad_joined);
      for (int64_t first = 0; first < positions; first += kAttentionBlock) {
        const Loops::BlockKeys keys(shape, first);
        const int64_t low = keys.low, count = keys.count;
        product(kAttentionBlock, count, pairs, at.q_rows + first * pairs, pairs, 1,
                at.k_columns + low, positions, at.p, positions, false);
        product(kAttentionBlock, count, pairs, at.grad_rows + first * pairs, pairs, 1,
                at.v_columns + low, positions, at.dp, positions, false);
        block_gradients(x, shape, keys, head, scale, at);
        product(count, width, kAttentionBlock / 2, at.p_joined, 1, positions,
                at.grad_joined + first / 2 * width, width, at.grad_v + low * width, width, true);
        product(count, width, kAttentionBlock / 2, at.ds_joined, 1, positions,
                at.q_joined + first / 2 * width, width, at.grad_k + low * width, width, true);
        product(kAttentionBlock, width, count / 2, at.ds_rows, positions / 2, 1,
                at.k_joined + low / 2 * width, width, at.block, width, false);
        Loops::write(at.block, 1, first, kAttentionBlock, shape, x.grad_q + offset, shape.q_stride);
      }
    }
    Loops::write(at.grad_k, 1, 0, positions, shape, x.grad_k, shape.kv_stride);
    Loops::write(at.grad_v, 1, 0, positions, shape, x.grad_v, shape.kv_stride);
  }
};

void multiply_words(int64_t rows, int64_t width, int64_t depth, const Word* a, int64_t a_row,
                    int64_t a_step, const Word* b, int64_t b_row, float* c, int64_t c_row,
                    bool add) {
  multiply_by_tiles<WordAttention>(rows, width, depth, a, a_row, a_step, b, b_row, c, c_row, add);
}

void set_attention(BlockKernels<Bf16>& set) {
  set.attention = [](const Bf16* q, const Bf16* k, const Bf16* v, Bf16* out, float* log_sums,
                     const AttentionShape& shape, float scale, float* scratch, Multiply<float>) {
    WordAttention::forward(q, k, v, out, log_sums, shape, scale, scratch, multiply_words);
  };
  set.attention_backward = [](const AttentionTensors<Bf16>& tensors, const AttentionShape& shape,
                              float scale, float* scratch, Multiply<float>) {
    WordAttention::backward(tensors, shape, scale, scratch, multiply_words);
  };
}

}  // namespace
}  // namespace xffl::kernels

#pragma GCC pop_options

namespace xffl::kernels::x86 {

bool add_bf16_attention(BlockKernels<Bf16>& set) {
  if (!__builtin_cpu_supports("avx512bf16")) return false;
  set_attention(set);
  return true;
}

}  // namespace xffl::kernels::x86
