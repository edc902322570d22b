// Tiles of bfloat16 products by AVX512-BF16, and the packing of their factors. The including file
// puts the instruction set in force; all names are local to that file.
//
// A word is two neighbouring values along a product's sum.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "cpu/lanes.h"

namespace xffl::kernels::tiles {
namespace {

using Word = uint32_t;

constexpr int64_t kVector = 16;  // words
constexpr int64_t kRows = 8;
constexpr int64_t kPanel = 3 * kVector;

// A tile's factors, initial values and result. A and its strides are in words.
struct Tile {
  int64_t depth;
  const Word* a;
  int64_t a_row, a_step;
  const Word* panel;
  const float* from;  // the initial values; null: zeros
  int64_t from_row;
  float* to;  // the result; null: narrow
  int64_t to_row;
  Bf16* narrow;
  int64_t narrow_row;
};

inline __m512bh load_words(const Word* from) {
  return reinterpret_cast<__m512bh>(_mm512_loadu_si512(from));
}

// Rounds kVectors vectors of 16 and stores them.
template <int kVectors>
inline void store_narrow(Bf16* to, const __m512* values) {
  if constexpr (kVectors >= 2) {
    const __m512bh two = _mm512_cvtne2ps_pbh(values[1], values[0]);
    std::memcpy(to, &two, sizeof two);
  }
  if constexpr (kVectors != 2) {
    const __m256bh last = _mm512_cvtneps_pbh(values[kVectors - 1]);
    std::memcpy(to + (kVectors - 1) * kVector, &last, sizeof last);
  }
}

template <int kVectors>
void multiply_tile(const Tile& t) {
  __m512 sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v)
      sums[r][v] = t.from != nullptr ? _mm512_loadu_ps(t.from + r * t.from_row + v * kVector)
                                     : _mm512_setzero_ps();
  }
  const Word* a = t.a;
  const Word* panel = t.panel;
  const int64_t a_row = t.a_row, a_step = t.a_step;
  for (int64_t k = 0; k < t.depth; ++k, a += a_step, panel += kPanel) {
    __m512bh row[kVectors];
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) row[v] = load_words(panel + v * kVector);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      int word;
      std::memcpy(&word, a + r * a_row, sizeof word);
      const auto factor = reinterpret_cast<__m512bh>(_mm512_set1_epi32(word));
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) sums[r][v] = _mm512_dpbf16_ps(sums[r][v], factor, row[v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    if (t.to == nullptr) {
      store_narrow<kVectors>(t.narrow + r * t.narrow_row, sums[r]);
    } else {
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v)
        _mm512_storeu_ps(t.to + r * t.to_row + v * kVector, sums[r][v]);
    }
  }
}

void multiply_tile(const Tile& tile, int64_t width) {
  if (width > 2 * kVector) return multiply_tile<3>(tile);
  if (width > kVector) return multiply_tile<2>(tile);
  multiply_tile<1>(tile);
}

// The first `count` (at most 16; none below 1) values of a row, then zeros.
inline __m256i load_values(const Bf16* row, int64_t count) {
  const auto mask =
      static_cast<__mmask16>(count >= 16 ? 0xffff : (1u << std::max(count, int64_t{0})) - 1);
  return _mm256_maskz_loadu_epi16(mask, row);
}

// Joins two rows' values to words.
inline __m512i join(__m256i first, __m256i second) {
  return _mm512_or_si512(_mm512_cvtepu16_epi32(first),
                         _mm512_slli_epi32(_mm512_cvtepu16_epi32(second), 16));
}

// 16 rows of 16 words become 16 columns.
inline void transpose(__m512i* x) {
  __m512i y[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
    y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    x[i] = _mm512_unpacklo_epi64(y[i], y[i + 2]);
    x[i + 1] = _mm512_unpackhi_epi64(y[i], y[i + 2]);
    x[i + 2] = _mm512_unpacklo_epi64(y[i + 1], y[i + 3]);
    x[i + 3] = _mm512_unpackhi_epi64(y[i + 1], y[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    y[i] = _mm512_shuffle_i32x4(x[i], x[i + 4], 0x88);
    y[i + 4] = _mm512_shuffle_i32x4(x[i], x[i + 4], 0xdd);
    y[i + 8] = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0x88);
    y[i + 12] = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0xdd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    x[i] = _mm512_shuffle_i32x4(y[i], y[i + 8], 0x88);
    x[i + 8] = _mm512_shuffle_i32x4(y[i], y[i + 8], 0xdd);
    x[i + 4] = _mm512_shuffle_i32x4(y[i + 4], y[i + 12], 0x88);
    x[i + 12] = _mm512_shuffle_i32x4(y[i + 4], y[i + 12], 0xdd);
  }
}

}  // namespace
}  // namespace xffl::kernels::tiles
