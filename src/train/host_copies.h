// Values between a device and the host's memory, in pieces through two buffers that stay: one is
// worked on while the other is copied. Pinned where the device is a GPU; on a CPU the same, for
// tests.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "xffl/shard/side_stream.h"

namespace xffl::train {

/// A device's values, read on the host from the first to the last.
class HostWindow {
 public:
  explicit HostWindow(at::Device device) : device_(device), side_(device) {}

  /// Of `values_N`, float32 on the device; they are rounded to `dtype` there, and travel so.
  void open(const at::Tensor& values_N, at::ScalarType dtype);
  /// Makes [begin, begin + count) readable; parts come in order, of at most kPieceElements.
  void prepare(int64_t begin, int64_t count);
  /// Values of what was prepared; by several threads at once.
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

/// Values on their way from the host to a device.
class DeviceUpload {
 public:
  explicit DeviceUpload(at::Device device) : device_(device), side_(device) {}

  /// `fill(begin, to)` writes the bytes of elements from `begin` on of `size` of them, in pieces,
  /// by several threads at once; `take(begin, values)` gets each piece on the device, in order:
  /// there until it returns, for the current stream.
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
