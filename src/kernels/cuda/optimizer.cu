// Only fmaf() fuses a product and a sum. A master in two parts therefore takes the same steps, bit
// for bit, as a float32 master.
#include "rows.h"
#include "xffl/kernels/cuda/kernels.h"

namespace xffl::kernels {
namespace {

// The factors of a step; the host rounds them to float32 once.
struct AdamwFactors {
  explicit AdamwFactors(const AdamwNumbers& n)
      : gradient(static_cast<float>(n.gradient_factor)),
        decay(static_cast<float>(n.coupled ? 0 : n.learning_rate * n.weight_decay)),
        coupled_decay(static_cast<float>(n.coupled ? n.weight_decay : 0)),
        beta2(static_cast<float>(n.beta2)),
        beta1_left(static_cast<float>(1 - n.beta1)),
        beta2_left(static_cast<float>(1 - n.beta2)),
        rate(static_cast<float>(n.learning_rate /
                                (1 - std::pow(n.beta1, static_cast<double>(n.step))))),
        inverse_root(
            static_cast<float>(1 / std::sqrt(1 - std::pow(n.beta2, static_cast<double>(n.step))))),
        epsilon(static_cast<float>(n.epsilon)) {}

  float gradient, decay, coupled_decay, beta2, beta1_left, beta2_left, rate, inverse_root, epsilon;
};

template <int kCount, class G, class M>
XFFL_DEVICE void adamw_step(const AdamwFactors& by, const G* gradients, M* first, M* second,
                            float (&w)[kCount]) {
  float g[kCount], m[kCount], v[kCount];
  load<kCount>(gradients, g);
  load<kCount>(first, m);
  load<kCount>(second, v);
  for (int i = 0; i < kCount; ++i) {
    float grad = g[i] * by.gradient;
    if (by.coupled_decay != 0) grad = fmaf(by.coupled_decay, w[i], grad);
    m[i] = fmaf(by.beta1_left, grad - m[i], m[i]);
    v[i] = fmaf(by.beta2_left * grad, grad, by.beta2 * v[i]);
    const float root = fmaf(sqrtf(v[i]), by.inverse_root, by.epsilon);
    w[i] = fmaf(-by.rate, m[i] / root, fmaf(-by.decay, w[i], w[i]));
  }
  store<kCount>(first, m);
  store<kCount>(second, v);
}

// Sets the weight to the upper half of the master, plus one where the lower half rounds up. Does
// not round NaNs.
XFFL_DEVICE void split_master(float master, Bf16& weight, uint16_t& remainder) {
  const uint32_t bits = as_bits(master);
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  weight.bits = static_cast<uint16_t>(is_nan ? (bits >> 16) | 0x40u : (bits + 0x8000u) >> 16);
  remainder = static_cast<uint16_t>(is_nan ? 0 : bits);
}

XFFL_DEVICE float join_master(Bf16 weight, uint16_t remainder) {
  const uint32_t rounded_up = remainder >> 15;
  return as_float(((weight.bits - rounded_up) << 16) | remainder);
}

template <int kCount, class T>
XFFL_DEVICE void load_master(const T* from, int64_t at, float (&w)[kCount]) {
  load<kCount>(from + at, w);
}
template <int kCount, class T>
XFFL_DEVICE void load_master(const WideMaster<T>& from, int64_t at, float (&w)[kCount]) {
  load<kCount>(from.master + at, w);
}
template <int kCount>
XFFL_DEVICE void load_master(const SplitMaster& from, int64_t at, float (&w)[kCount]) {
  alignas(16) Bf16 high[kCount];
  alignas(16) uint16_t low[kCount];
  load_raw<kCount>(from.weight + at, high);
  load_raw<kCount>(from.remainder + at, low);
  for (int i = 0; i < kCount; ++i) w[i] = join_master(high[i], low[i]);
}

template <int kCount, class T>
XFFL_DEVICE void store_master(T* to, int64_t at, const float (&w)[kCount]) {
  store<kCount>(to + at, w);
}
template <int kCount, class T>
XFFL_DEVICE void store_master(const WideMaster<T>& to, int64_t at, const float (&w)[kCount]) {
  store<kCount>(to.master + at, w);
  if (to.copy != nullptr) store<kCount>(to.copy + at, w);
}
template <int kCount>
XFFL_DEVICE void store_master(const SplitMaster& to, int64_t at, const float (&w)[kCount]) {
  alignas(16) Bf16 high[kCount];
  alignas(16) uint16_t low[kCount];
  for (int i = 0; i < kCount; ++i) split_master(w[i], high[i], low[i]);
  store_raw<kCount>(to.weight + at, high);
  store_raw<kCount>(to.remainder + at, low);
}

template <class T>
bool is_master_aligned(const T* weight) {
  return is_aligned(weight);
}
template <class T>
bool is_master_aligned(const WideMaster<T>& master) {
  return is_aligned(master.master, master.copy);
}
bool is_master_aligned(const SplitMaster& master) {
  return is_aligned(master.weight, master.remainder);
}

template <class Master, class G, class M>
struct AdamwStep {
  Master master;
  const G* gradient;
  M *first, *second;
  AdamwFactors by;

  template <int kCount>
  XFFL_DEVICE void run(int64_t at) const {
    float w[kCount];
    load_master(master, at, w);
    adamw_step(by, gradient + at, first + at, second + at, w);
    store_master(master, at, w);
  }
};

struct SgdFactors {
  explicit SgdFactors(const SgdNumbers& n)
      : gradient(static_cast<float>(n.gradient_factor)),
        decay(static_cast<float>(n.weight_decay)),
        momentum(static_cast<float>(n.momentum)),
        rate(static_cast<float>(n.learning_rate)),
        nesterov(n.nesterov) {}

  float gradient, decay, momentum, rate;
  bool nesterov;
};

template <class Master, class G, class M>
struct SgdStep {
  Master master;
  const G* gradient;
  M* velocity;
  SgdFactors by;

  template <int kCount>
  XFFL_DEVICE void run(int64_t at) const {
    float w[kCount], g[kCount], v[kCount];
    load_master(master, at, w);
    load<kCount>(gradient + at, g);
    for (int i = 0; i < kCount; ++i) g[i] = fmaf(by.decay, w[i], g[i] * by.gradient);
    if (velocity != nullptr) {
      load<kCount>(velocity + at, v);
      for (int i = 0; i < kCount; ++i) {
        v[i] = fmaf(by.momentum, v[i], g[i]);
        g[i] = by.nesterov ? fmaf(by.momentum, v[i], g[i]) : v[i];
      }
      store<kCount>(velocity + at, v);
    }
    for (int i = 0; i < kCount; ++i) w[i] = fmaf(-by.rate, g[i], w[i]);
    store_master(master, at, w);
  }
};

// Converts one storage of masters to another.
template <class From, class To>
struct CopyMasters {
  From from;
  To to;

  template <int kCount>
  XFFL_DEVICE void run(int64_t at) const {
    float w[kCount];
    load_master(from, at, w);
    store_master(to, at, w);
  }
};

template <int kCount, class T>
XFFL_KERNEL(kElementThreads)
square_sum_pieces(const T* x, double* sums, int64_t pieces, int64_t piece) {
  const int64_t step = static_cast<int64_t>(num_threads()) * kCount;
  for (int64_t index = block_index(); index < pieces; index += num_blocks()) {
    double sum = 0;
    for (int64_t i = thread_index() * kCount; i < piece; i += step) {
      float v[kCount];
      load<kCount>(x + index * piece + i, v);
      for (int j = 0; j < kCount; ++j)
        sum = fma(static_cast<double>(v[j]), static_cast<double>(v[j]), sum);
    }
    sum = block_sum(sum);
    if (thread_index() == 0) sums[index] = sum;
  }
}

constexpr int kElements = 8;  // 16 bytes of the narrowest buffer

}  // namespace

template <class Master, class G, class M>
void adamw(const Launch& on, Master master, const G* gradient, M* first_moment, M* second_moment,
           int64_t size, const AdamwNumbers& numbers) {
  launch_elementwise<kElements>(
      on, "adamw", size,
      is_master_aligned(master) && is_aligned(gradient, first_moment, second_moment),
      AdamwStep<Master, G, M>{master, gradient, first_moment, second_moment,
                              AdamwFactors(numbers)});
}

template <class Master, class G, class M>
void sgd(const Launch& on, Master master, const G* gradient, M* velocity, int64_t size,
         const SgdNumbers& numbers) {
  launch_elementwise<kElements>(
      on, "sgd", size, is_master_aligned(master) && is_aligned(gradient, velocity),
      SgdStep<Master, G, M>{master, gradient, velocity, SgdFactors(numbers)});
}

void split_masters(const Launch& on, const float* master, Bf16* weight, uint16_t* remainder,
                   int64_t size) {
  launch_elementwise<kElements>(
      on, "split_masters", size, is_aligned(master, weight, remainder),
      CopyMasters<const float*, SplitMaster>{master, {weight, remainder}});
}

void join_masters(const Launch& on, const Bf16* weight, const uint16_t* remainder, float* master,
                  int64_t size) {
  // The kernel reads the two parts and never writes them.
  const SplitMaster parts{const_cast<Bf16*>(weight), const_cast<uint16_t*>(remainder)};
  launch_elementwise<kElements>(on, "join_masters", size, is_aligned(master, weight, remainder),
                                CopyMasters<SplitMaster, float*>{parts, master});
}

template <class T>
void square_sums(const Launch& on, const T* x, double* sums, int64_t size, int64_t piece) {
  constexpr int64_t kMaxBlocks = int64_t{1} << 30;
  if (size == 0) return;
  const bool packed = piece % kPack<T> == 0 && is_aligned(x);
  const int64_t pieces = size / piece;
  launch(on, "square_sums", packed ? square_sum_pieces<kPack<T>, T> : square_sum_pieces<1, T>,
         std::min(pieces, kMaxBlocks),
         threads_for(piece / (packed ? kPack<T> : 1), kElementThreads), x, sums, pieces, piece);
}

#define XFFL_STEPS(Master, G, M)                                                      \
  template void adamw<Master, G, M>(const Launch&, Master, const G*, M*, M*, int64_t, \
                                    const AdamwNumbers&);                             \
  template void sgd<Master, G, M>(const Launch&, Master, const G*, M*, int64_t, const SgdNumbers&);
XFFL_STEPS(WideMaster<float>, float, float)
XFFL_STEPS(WideMaster<Half>, float, float)

#define XFFL_STEPS_BF16(G, M)        \
  XFFL_STEPS(WideMaster<Bf16>, G, M) \
  XFFL_STEPS(SplitMaster, G, M)      \
  XFFL_STEPS(Bf16*, G, M)
XFFL_STEPS_BF16(float, float)
XFFL_STEPS_BF16(float, Bf16)
XFFL_STEPS_BF16(Bf16, float)
XFFL_STEPS_BF16(Bf16, Bf16)

template void square_sums<float>(const Launch&, const float*, double*, int64_t, int64_t);
template void square_sums<Bf16>(const Launch&, const Bf16*, double*, int64_t, int64_t);

}  // namespace xffl::kernels
