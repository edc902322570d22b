// Streams values between a device and host memory, in pieces through two buffers. The host works on
// one buffer while the device copies the other buffer. The buffers are pinned for a GPU; a CPU runs
// the same code in tests.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "xffl/shard/side_stream.h"

namespace xffl::train {

/// Reads a device's values on the host, in order.
class HostWindow {
 public:
  explicit HostWindow(at::Device device) : device_(device), side_(device) {}

  /// Opens `values_N`, float32 on the device. The device rounds the values to `dtype` before the
  /// copy.
  void open(const at::Tensor& values_N, at::ScalarType dtype);
  /// Makes [begin, begin + count) readable. Call prepare() in order, with at most kPieceElements.
  void prepare(int64_t begin, int64_t count);
  /// Reads prepared values. Thread-safe.
  void read(int64_t begin, std::span<float> out) const;

  static constexpr int64_t kPieceElements = 4 << 20;

 private:
  struct Buffer {
    at::Tensor host;
    shard::SideStream::Mark copied;
  };
  void start(int64_t piece);
  const Buffer& buffer(int64_t piece) const { return buffers_[static_cast<size_t>(piece % 2)]; }

  at::Device device_;
  shard::SideStream side_;
  at::Tensor values_N_;
  at::ScalarType dtype_ = at::kFloat;
  int64_t num_started_ = 0;
  std::array<Buffer, 2> buffers_;
};

/// Uploads values from the host to a device.
class DeviceUpload {
 public:
  explicit DeviceUpload(at::Device device) : device_(device), side_(device) {}

  /// Uploads `size` elements in pieces. Several threads call `fill(begin, to)`, which writes the
  /// bytes of the elements from `begin`. `take(begin, values)` receives each piece on the device,
  /// in order, for the current stream; `values` is valid until `take` returns.
  void run(int64_t size, at::ScalarType dtype,
           const std::function<void(int64_t begin, std::span<std::byte> to)>& fill,
           const std::function<void(int64_t begin, const at::Tensor& values)>& take);

  static constexpr int64_t kPieceBytes = 16 << 20;

 private:
  struct Buffer {
    at::Tensor host;  // bytes
    shard::SideStream::Mark sent;
  };
  at::Device device_;
  shard::SideStream side_;
  std::array<Buffer, 2> buffers_;
  size_t next_ = 0;
};

}  // namespace xffl::train
