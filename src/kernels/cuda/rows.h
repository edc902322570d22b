// Loads and stores of several elements at once, loops over a grid, and reductions over a thread
// block.
//
// One 16-byte instruction moves a pack of kCount elements. Other elements move one by one. The
// compiler compiles the kernels with kCount = kPack<T> for aligned buffers, and with 1 for other
// buffers and for tails.
#pragma once

#include <algorithm>
#include <cstdint>

#include "device.h"

namespace xffl::kernels {

constexpr int kWarp = 32;

/// The number of elements in 16 bytes.
template <class T>
constexpr int kPack = 16 / static_cast<int>(sizeof(T));

template <int kCount, class T>
XFFL_DEVICE void load_raw(const T* from, T (&to)[kCount]) {
  constexpr int kBytes = kCount * static_cast<int>(sizeof(T));
  if constexpr (kBytes % 16 == 0) {
    for (int i = 0; i < kBytes / 16; ++i) copy16(to, from, i);
  } else {
    for (int i = 0; i < kCount; ++i) to[i] = from[i];
  }
}

template <int kCount, class T>
XFFL_DEVICE void store_raw(T* to, const T (&from)[kCount]) {
  constexpr int kBytes = kCount * static_cast<int>(sizeof(T));
  if constexpr (kBytes % 16 == 0) {
    for (int i = 0; i < kBytes / 16; ++i) write16(to, from, i);
  } else {
    for (int i = 0; i < kCount; ++i) to[i] = from[i];
  }
}

template <int kCount, class T>
XFFL_DEVICE void load(const T* from, float (&to)[kCount]) {
  alignas(16) T raw[kCount];
  load_raw<kCount>(from, raw);
  for (int i = 0; i < kCount; ++i) to[i] = widen(raw[i]);
}

template <int kCount, class T>
XFFL_DEVICE void store(T* to, const float (&from)[kCount]) {
  alignas(16) T raw[kCount];
  for (int i = 0; i < kCount; ++i) narrow(from[i], raw[i]);
  store_raw<kCount>(to, raw);
}

/// A value after rounding to T.
template <class T>
XFFL_DEVICE float rounded_to(float value) {
  T narrowed;
  narrow(value, narrowed);
  return widen(narrowed);
}

struct Sum {
  template <class F>
  XFFL_DEVICE F operator()(F a, F b) const {
    return a + b;
  }
};
struct Maximum {
  XFFL_DEVICE float operator()(float a, float b) const { return fmaxf(a, b); }
};

template <class Combine, class F>
XFFL_DEVICE F reduce_warp(F value) {
  for (int mask = kWarp / 2; mask > 0; mask /= 2)
    value = Combine()(value, shuffle_xor(value, mask));
  return value;
}

// Reduces over the thread block's threads and gives every thread the result; `none` is the neutral
// value.
template <class Combine, class F>
XFFL_DEVICE F reduce_block(F value, F none) {
  XFFL_SHARED F parts[kWarp];
  value = reduce_warp<Combine>(value);
  if (num_threads() == kWarp) {
    sync_warp();
    return value;
  }
  const int lane = thread_index() % kWarp;
  sync();  // all threads have read the last call's parts
  if (lane == 0) parts[thread_index() / kWarp] = value;
  sync();
  return reduce_warp<Combine>(lane < num_threads() / kWarp ? parts[lane] : none);
}

/// The sum over the thread block's threads, for each thread; all threads call the function. Reads
/// before the call precede writes after the call.
template <class F>
XFFL_DEVICE F block_sum(F value) {
  return reduce_block<Sum>(value, F{0});
}
/// The maximum over the thread block's threads, for each thread; skips NaNs.
XFFL_DEVICE float block_max(float value) { return reduce_block<Maximum>(value, -INFINITY); }

// --- on the host -------------------------------------------------------------------------------

template <class... Pointers>
bool is_aligned(const Pointers*... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) % 16 == 0) && ...);
}

/// The number of threads of a thread block for `work` items: whole warps.
inline int threads_for(int64_t work, int most) {
  const int64_t warps = (work + kWarp - 1) / kWarp;
  return static_cast<int>(std::clamp(warps * kWarp, int64_t{kWarp}, int64_t{most}));
}

// --- element by element -------------------------------------------------------------------------

constexpr int kElementThreads = 256;
constexpr int64_t kBlocksPerMultiprocessor = 16;

/// Calls body.run<n>(i) to work on elements [i, i + n).
template <int kCount, class Body>
XFFL_KERNEL(kElementThreads)
elementwise(int64_t size, Body body) {
  const int64_t stride = num_blocks() * num_threads();
  const int64_t first = block_index() * num_threads() + thread_index();
  const int64_t whole = size / kCount;
  for (int64_t i = first; i < whole; i += stride) body.template run<kCount>(i * kCount);
  if constexpr (kCount > 1) {
    for (int64_t i = whole * kCount + first; i < size; i += stride) body.template run<1>(i);
  }
}

template <int kCount, class Body>
void launch_elementwise(const Launch& on, const char* name, int64_t size, bool aligned,
                        const Body& body) {
  if (size == 0) return;
  const int64_t a_thread = aligned ? kCount : 1;
  const int64_t needed = (size + a_thread * kElementThreads - 1) / (a_thread * kElementThreads);
  const int64_t blocks = std::min(needed, kBlocksPerMultiprocessor * on.num_multiprocessors);
  launch(on, name, aligned ? elementwise<kCount, Body> : elementwise<1, Body>, blocks,
         kElementThreads, size, body);
}

}  // namespace xffl::kernels
