// How it works: a word is two neighbouring values along the sum, which an instruction multiplies at
// once. Tiles of 8 rows by 48 columns stay in registers while they run along a step of up to 160
// words. The code packs B in panels of 48 columns, which fit a first-level cache. If all panels fit
// the second-level cache, the code packs them beforehand. Tiles read A in place, row by row; the
// code packs a transposed A in strips of 8 rows. Tiles prefetch the next block's part of A, whose
// rows are too far apart for the hardware prefetcher.
#include "xffl/kernels/cpu/bf16_product.h"

#include <cpuid.h>
#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>

#pragma GCC push_options
#pragma GCC target( \
    "avx2,fma,bmi2,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,prefer-vector-width=512")
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // in the intrinsics' own headers

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

// Loads the first `count` (at most 16; below 1: none) values of a row, then zeros.
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

// Transposes 16 rows of 16 words.
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

constexpr int64_t kStep = 160;              // words along the sum: 30 KB of a panel
constexpr int64_t kWholeWords = 192 << 10;  // words of a B that is packed beforehand: 768 KB
constexpr int64_t kTransposedBlockRows = 288;
constexpr int64_t kBlockRows = 1024;
constexpr int64_t kBlockPanels = 16;
constexpr int64_t kLine = 64;  // bytes

struct Freed {
  void operator()(void* memory) const { ::operator delete[](memory, std::align_val_t(kLine)); }
};
template <class T>
using Buffer = std::unique_ptr<T[], Freed>;

template <class T>
Buffer<T> make_buffer(int64_t count) {
  const auto bytes = static_cast<size_t>(count) * sizeof(T);
  return Buffer<T>(static_cast<T*>(::operator new[](bytes, std::align_val_t(kLine))));
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Prefetches a part of a matrix, a few cache lines at a time.
class Ahead {
 public:
  Ahead() = default;
  /// At most `rows` rows; `times` calls prefetch the whole part.
  Ahead(const Bf16* first, int64_t row_stride, int64_t rows, int64_t width, int64_t times)
      : row_(reinterpret_cast<const char*>(first)),
        stride_(row_stride * 2),
        rows_(rows),
        bytes_(width * 2) {
    const int64_t lines = rows * (ceil_div(bytes_, kLine) + 1);
    each_ = ceil_div(lines, times);
  }

  void some() {
    for (int64_t i = 0; i < each_ && rows_ > 0; ++i) {
      _mm_prefetch(row_ + std::min(at_, bytes_ - 1), _MM_HINT_T1);
      if (at_ < bytes_) {
        at_ += kLine;
      } else {
        at_ = 0;
        row_ += stride_;
        --rows_;
      }
    }
  }

 private:
  const char* row_ = nullptr;
  int64_t stride_ = 0, rows_ = 0, bytes_ = 0, at_ = 0, each_ = 0;
};

class Blocks {
 public:
  Blocks(const Bf16Product& product, const ProductPart& part)
      : p_(product), part_(part), words_(ceil_div(product.depth, 2)) {
    steps_ = ceil_div(words_, kStep);
    step_ = ceil_div(words_, steps_);
    panels_ = ceil_div(part.end - part.begin, kPanel);
    const int64_t rows = part.row_end - part.row_begin;
    const int64_t blocks = ceil_div(rows, p_.a_transposed ? kTransposedBlockRows : kBlockRows);
    block_rows_ = ceil_div(ceil_div(rows, blocks), 2 * kRows) * 2 * kRows;
    is_whole_ =
        panels_ * kPanel * words_ <= kWholeWords && part.row_end - part.row_begin > block_rows_;
    packed_b_ = make_buffer<Word>(kPanel * (is_whole_ ? panels_ * words_ : step_));
    strip_ = kRows * step_ + kVector;
    packed_a_ =
        make_buffer<Word>(p_.a_transposed ? 2 * kTransposedBlockRows / kRows * strip_ : strip_);
    if (p_.narrow_c != nullptr && steps_ > 1) {
      const int64_t tiles = ceil_div(std::min(block_rows_, part.row_end - part.row_begin), kRows);
      sums_ = make_buffer<float>(panels_ * tiles * kRows * kPanel);
    }
  }

  void run() {
    if (is_whole_) {
      for (int64_t s = 0; s < steps_; ++s) {
        for (int64_t i = 0; i < panels_; ++i) pack_panel(s, i);
      }
    }
    if (p_.a_transposed) {
      set_next_a(part_.row_begin, 0, 1);
      pack_next_a();
    }
    for (int64_t m = part_.row_begin; m < part_.row_end; m += block_rows_) {
      block_begin_ = m;
      block_end_ = std::min(m + block_rows_, part_.row_end);
      block();
    }
  }

 private:
  int64_t words_of(int64_t s) const { return std::min(step_, words_ - s * step_); }
  int64_t column(int64_t panel) const { return part_.begin + panel * kPanel; }

  Word* panel_at(int64_t s, int64_t panel) {
    // All panels of a step are contiguous.
    return packed_b_.get() + (is_whole_ ? (s * step_ * panels_ + words_of(s) * panel) * kPanel : 0);
  }

  void pack_panel(int64_t s, int64_t panel) {
    Word* to = panel_at(s, panel);
    const int64_t n = column(panel), first = s * step_, count = words_of(s);
    if (p_.b_transposed) return pack_transposed(n, first, count, to);
    for (int64_t k = 0; k < count; ++k) {
      const Bf16* row = p_.b + 2 * (first + k) * p_.b_row + n;
      const bool has_second = 2 * (first + k) + 1 < p_.depth;
      for (int64_t j = 0; j < kPanel; j += kVector) {
        const int64_t left = part_.end - n - j;
        const __m256i values = load_values(row + j, left);
        const __m256i second =
            has_second ? load_values(row + p_.b_row + j, left) : _mm256_setzero_si256();
        _mm512_store_si512(to + k * kPanel + j, join(values, second));
      }
    }
  }

  // Packs a transposed B, whose rows already hold words.
  void pack_transposed(int64_t n, int64_t first, int64_t count, Word* to) {
    for (int64_t j = 0; j < kPanel; j += kVector) {
      for (int64_t k = 0; k < count; k += kVector) {
        const int64_t words = std::min(count - k, kVector);
        const auto mask = static_cast<__mmask16>((1u << words) - 1);
        __m512i x[16];
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) {
          const Bf16* row = p_.b + (n + j + i) * p_.b_row + 2 * (first + k);
          x[i] =
              n + j + i < part_.end ? _mm512_maskz_loadu_epi32(mask, row) : _mm512_setzero_si512();
        }
        transpose(x);
        for (int64_t i = 0; i < words; ++i) _mm512_store_si512(to + (k + i) * kPanel + j, x[i]);
      }
    }
  }

  // Packs the next part of a transposed A while tiles use the previous part; `times` calls pack
  // all.
  void set_next_a(int64_t m, int64_t s, int64_t times) {
    next_begin_ = m;
    next_end_ = std::min(m + block_rows_, part_.row_end);
    next_step_ = s;
    next_k_ = 0;
    next_each_ = ceil_div(words_of(s), times);
    half_ = 1 - half_;
  }

  // Packs strips of 8 rows; words with the same place in the sum are contiguous.
  void pack_next_a() {
    const int64_t count = words_of(next_step_), first = next_step_ * step_;
    const int64_t end = std::min(next_k_ + next_each_, count);
    Word* half = packed_a_.get() + half_ * kTransposedBlockRows / kRows * strip_;
    for (; next_k_ < end; ++next_k_) {
      const int64_t k = first + next_k_;
      const Bf16* row = p_.a + 2 * k * p_.a_row;
      const bool has_second = 2 * k + 1 < p_.depth;
      for (int64_t m = next_begin_; m < next_end_; m += 2 * kRows) {
        const __m256i values = load_values(row + m, next_end_ - m);
        const __m256i second =
            has_second ? load_values(row + p_.a_row + m, next_end_ - m) : _mm256_setzero_si256();
        const __m512i words = join(values, second);
        Word* to = half + (m - next_begin_) / kRows * strip_ + next_k_ * kRows;
        _mm256_store_si256(reinterpret_cast<__m256i*>(to), _mm512_castsi512_si256(words));
        _mm256_store_si256(reinterpret_cast<__m256i*>(to + strip_),
                           _mm512_extracti64x4_epi64(words, 1));
      }
    }
    for (int64_t k = first + next_k_; k < first + std::min(next_k_ + next_each_, count); ++k) {
      for (int64_t i = 0; i < 2 && 2 * k + i < p_.depth; ++i) {
        const char* row =
            reinterpret_cast<const char*>(p_.a + (2 * k + i) * p_.a_row + next_begin_);
        for (int64_t at = 0; at < (next_end_ - next_begin_) * 2; at += kLine)
          _mm_prefetch(row + at, _MM_HINT_T0);
      }
    }
  }

  void block() {
    const int64_t tiles = ceil_div(block_end_ - block_begin_, kRows);
    for (int64_t s = 0; s < steps_; ++s) {
      used_half_ = half_;
      Ahead ahead_a;
      if (p_.a_transposed) {
        const bool same = s + 1 < steps_;
        if (same || block_end_ < part_.row_end)
          set_next_a(same ? block_begin_ : block_end_, same ? s + 1 : 0, panels_ * tiles);
      } else if (s + 1 < steps_) {
        ahead_a = Ahead(p_.a + block_begin_ * p_.a_row + 2 * (s + 1) * step_, p_.a_row,
                        block_end_ - block_begin_, 2 * words_of(s + 1), panels_ * tiles);
      }
      for (int64_t i = 0; i < panels_; ++i) {
        if (!is_whole_) pack_panel(s, i);
        Ahead ahead_b = is_whole_ ? Ahead() : next_panel(s, i, tiles);
        for (int64_t m = block_begin_; m < block_end_; m += kRows) {
          if (used_half_ != half_) pack_next_a();
          ahead_a.some();
          ahead_b.some();
          tile(s, i, m);
        }
      }
    }
  }

  Ahead next_panel(int64_t s, int64_t panel, int64_t times) const {
    panel += 1;
    if (panel == panels_) {
      panel = 0;
      s += 1;
    }
    if (s == steps_) return {};
    const int64_t n = column(panel), first = 2 * s * step_;
    const int64_t width = std::min(part_.end - n, kPanel),
                  depth = std::min(2 * words_of(s), p_.depth - first);
    if (p_.b_transposed) return {p_.b + n * p_.b_row + first, p_.b_row, width, depth, times};
    return {p_.b + first * p_.b_row + n, p_.b_row, depth, width, times};
  }

  void set_rows(Tile& tile, int64_t s, int64_t m) {
    if (p_.a_transposed) {
      tile.a =
          packed_a_.get() + (used_half_ * kTransposedBlockRows + m - block_begin_) / kRows * strip_;
      tile.a_row = 1;
      tile.a_step = kRows;
      return;
    }
    tile.a = reinterpret_cast<const Word*>(p_.a + m * p_.a_row) + s * step_;
    tile.a_row = p_.a_row / 2;
    tile.a_step = 1;
    if (m + kRows <= p_.rows) return;
    for (int64_t r = 0; r < kRows; ++r) {  // the matrix's last rows, and zeros
      Word* copy = packed_a_.get() + r * step_;
      const auto bytes = static_cast<size_t>(tile.depth) * sizeof(Word);
      std::memset(copy, 0, bytes);
      if (m + r < p_.rows) std::memcpy(copy, tile.a + r * tile.a_row, bytes);
    }
    tile.a = packed_a_.get();
    tile.a_row = step_;
  }

  void tile(int64_t s, int64_t panel, int64_t m) {
    Tile tile{};
    tile.depth = words_of(s);
    tile.panel = panel_at(s, panel);
    tile.from_row = tile.to_row = kPanel;
    set_rows(tile, s, m);
    const int64_t n = column(panel);
    const Edge edge{std::min(block_end_ - m, kRows), std::min(part_.end - n, kPanel)};
    if (p_.wide_c != nullptr)
      return wide_tile(tile, edge, p_.wide_c + m * p_.c_row + n, p_.add || s > 0);
    if (sums_ != nullptr) {
      const int64_t tiles = ceil_div(block_end_ - block_begin_, kRows);
      tile.to = sums_.get() + (panel * tiles + (m - block_begin_) / kRows) * kRows * kPanel;
      tile.from = s > 0 ? tile.to : nullptr;
    }
    if (s + 1 < steps_) return multiply_tile(tile, kPanel);
    last_narrow_tile(tile, edge, p_.narrow_c + m * p_.c_row + n);
  }

  // The part of a tile that is inside C.
  struct Edge {
    int64_t rows, width;
    bool is_none() const { return rows == kRows && width % kVector == 0; }
  };

  void wide_tile(Tile& tile, const Edge& edge, float* c, bool add) const {
    if (edge.is_none()) {
      tile.from = add ? c : nullptr;
      tile.to = c;
      tile.from_row = tile.to_row = p_.c_row;
      return multiply_tile(tile, edge.width);
    }
    float values[kRows * kPanel] = {};
    const auto bytes = static_cast<size_t>(edge.width) * sizeof(float);
    for (int64_t r = 0; add && r < edge.rows; ++r)
      std::memcpy(values + r * kPanel, c + r * p_.c_row, bytes);
    tile.from = tile.to = values;
    multiply_tile(tile, kPanel);
    for (int64_t r = 0; r < edge.rows; ++r)
      std::memcpy(c + r * p_.c_row, values + r * kPanel, bytes);
  }

  void last_narrow_tile(Tile& tile, const Edge& edge, Bf16* c) const {
    Bf16 values[kRows * kPanel];
    tile.to = nullptr;
    tile.narrow = edge.is_none() ? c : values;
    tile.narrow_row = edge.is_none() ? p_.c_row : kPanel;
    multiply_tile(tile, edge.is_none() ? edge.width : kPanel);
    for (int64_t r = 0; !edge.is_none() && r < edge.rows; ++r)
      std::memcpy(c + r * p_.c_row, values + r * kPanel,
                  static_cast<size_t>(edge.width) * sizeof(Bf16));
  }

  const Bf16Product& p_;
  const ProductPart& part_;
  int64_t words_, steps_ = 1, step_ = 0, panels_ = 0, block_rows_ = 0;
  bool is_whole_ = false;  // B is packed whole
  int64_t block_begin_ = 0, block_end_ = 0;
  int64_t strip_ = 0, half_ = 0, used_half_ = 0;  // of packed A
  int64_t next_begin_ = 0, next_end_ = 0, next_step_ = 0, next_k_ = 0, next_each_ = 0;
  Buffer<Word> packed_b_, packed_a_;
  Buffer<float> sums_;
};

void multiply_by_blocks(const Bf16Product& product, const ProductPart& part) {
  // Only a limited number of columns at once keeps sums from step to step.
  const bool waits = product.depth > 2 * kStep;
  for (ProductPart block = part; block.begin < part.end; block.begin = block.end) {
    if (waits) block.end = std::min(block.begin + kBlockPanels * kPanel, part.end);
    Blocks(product, block).run();
  }
}

}  // namespace
}  // namespace xffl::kernels::tiles

#pragma GCC diagnostic pop
#pragma GCC pop_options

namespace xffl::kernels {
namespace {

bool has_amx() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx >> 22 & 1u) != 0;
}

}  // namespace

bool has_bf16_product() {
  static const bool has =
      __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && !has_amx();
  return has;
}

void multiply_bf16(const Bf16Product& product, const ProductPart& part) {
  if (part.row_begin < part.row_end && part.begin < part.end)
    tiles::multiply_by_blocks(product, part);
}

}  // namespace xffl::kernels
