// src/kernels/cuda/nvidia/device.h on a CPU: kernels run block by block, the threads of a block in
// turn, each until it waits for the others.
//
// The emulation checks arithmetic, launches (grids, tails, alignment: a misaligned access of 16
// bytes ends the test), reductions, and that all threads of a block reach the same sync(). Threads
// run in rising or in falling order: a kernel that lacks a sync() gives different results. The
// emulation cannot check the last bit of the GPU's arithmetic, its memory model, and speed.
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>

#include "xffl/kernels/cuda/kernels.h"
#include "xffl/kernels/types.h"

#define XFFL_KERNEL(most_threads) void
#define XFFL_DEVICE inline
#define XFFL_SHARED static

namespace xffl::kernels {
namespace emulation {

struct Place {
  int thread = 0, num_threads = 1;
  int64_t block = 0, num_blocks = 1;
};
Place& here();
/// Runs the block's other threads up to their sync().
void wait_for_block();
/// The memory in which threads exchange values: 8 bytes each.
uint64_t& slot(int thread);
/// Runs `body` for all threads of all blocks.
void run(int64_t blocks, int threads, const std::function<void()>& body);
/// Threads in falling order from now on, or in rising order again.
void set_falling(bool falling);
[[noreturn]] inline void fail(const char* what) {
  std::fprintf(stderr, "emulated kernel: %s\n", what);
  std::abort();
}

inline void check_alignment(const void* address) {
  if (reinterpret_cast<uintptr_t>(address) % 16 != 0) fail("16 bytes at an odd address");
}

}  // namespace emulation

inline int thread_index() { return emulation::here().thread; }
inline int num_threads() { return emulation::here().num_threads; }
inline int64_t block_index() { return emulation::here().block; }
inline int64_t num_blocks() { return emulation::here().num_blocks; }
inline void sync() { emulation::wait_for_block(); }
inline void sync_warp() { sync(); }  // all warps of a block call it

template <class F>
F shuffle_xor(F value, int mask) {
  std::memcpy(&emulation::slot(thread_index()), &value, sizeof value);
  sync();
  F other;
  std::memcpy(&other, &emulation::slot(thread_index() ^ mask), sizeof other);
  sync();
  return other;
}

inline void copy16(void* to_registers, const void* from, int index) {
  emulation::check_alignment(from);
  std::memcpy(static_cast<char*>(to_registers) + 16 * index,
              static_cast<const char*>(from) + 16 * index, 16);
}
inline void write16(void* to, const void* registers, int index) {
  emulation::check_alignment(to);
  std::memcpy(static_cast<char*>(to) + 16 * index, static_cast<const char*>(registers) + 16 * index,
              16);
}

inline float as_float(uint32_t bits) { return std::bit_cast<float>(bits); }
inline uint32_t as_bits(float value) { return std::bit_cast<uint32_t>(value); }

inline float widen(float value) { return value; }
inline float widen(Bf16 value) { return c10::detail::f32_from_bits(value.bits); }
inline float widen(Half value) { return c10::detail::fp16_ieee_to_fp32_value(value.bits); }
inline void narrow(float value, float& result) { result = value; }
inline void narrow(float value, Bf16& result) {
  result.bits = c10::detail::round_to_nearest_even(value);
}
inline void narrow(float value, Half& result) {
  result.bits = c10::detail::fp16_ieee_from_fp32_value(value);
}

template <class T>
float exp_for(float x) {
  return std::exp(x);
}
template <class T>
float divide_for(float x, float y) {
  return x / y;
}

template <class... Parameters, class... Arguments>
void launch(const Launch&, const char*, void (*kernel)(Parameters...), int64_t blocks, int threads,
            const Arguments&... arguments) {
  emulation::run(blocks, threads, [&] { kernel(arguments...); });
}

}  // namespace xffl::kernels
