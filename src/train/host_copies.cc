#include "host_copies.h"

#include <ATen/Parallel.h>
#include <torch/types.h>

#include <algorithm>

namespace xffl::train {
namespace {

constexpr int64_t kFillGrain = 1 << 16;

at::TensorOptions host_options(at::ScalarType dtype, at::Device device) {
  return at::TensorOptions().dtype(dtype).pinned_memory(device.is_cuda());
}

}  // namespace

void HostWindow::open(const at::Tensor& values_N, at::ScalarType dtype) {
  values_N_ = values_N;
  dtype_ = dtype;
  num_started_ = 0;
}

void HostWindow::start(int64_t piece) {
  Buffer& to = buffers_[static_cast<size_t>(piece % 2)];
  if (!to.host.defined() || to.host.scalar_type() != dtype_)
    to.host = at::empty({kPieceElements}, host_options(dtype_, device_));
  const int64_t begin = piece * kPieceElements;
  const int64_t count = std::min(kPieceElements, values_N_.numel() - begin);
  to.copied = side_.run([&] {
    const at::Tensor rounded = values_N_.narrow(0, begin, count).to(dtype_);
    at::Tensor host = to.host.narrow(0, 0, count);
    host.copy_(rounded, /*non_blocking=*/true);
  });
  side_.keep(values_N_);
  num_started_ = piece + 1;
}

void HostWindow::prepare(int64_t begin, int64_t count) {
  const int64_t first = begin / kPieceElements;
  const int64_t last = (begin + count - 1) / kPieceElements;
  while (num_started_ <= last) start(num_started_);
  for (int64_t piece = first; piece <= last; ++piece)
    shard::SideStream::synchronize(buffer(piece).copied);
  // Starts the next piece if the other buffer is free.
  if (first == last && num_started_ == last + 1 &&
      num_started_ * kPieceElements < values_N_.numel())
    start(num_started_);
}

void HostWindow::read(int64_t begin, std::span<float> out) const {
  for (size_t done = 0; done < out.size();) {
    const int64_t at_element = begin + static_cast<int64_t>(done);
    const int64_t offset = at_element % kPieceElements;
    const int64_t count =
        std::min(kPieceElements - offset, static_cast<int64_t>(out.size() - done));
    at::from_blob(out.data() + done, {count})
        .copy_(buffer(at_element / kPieceElements).host.narrow(0, offset, count));
    done += static_cast<size_t>(count);
  }
}

void DeviceUpload::run(int64_t size, at::ScalarType dtype,
                       const std::function<void(int64_t, std::span<std::byte>)>& fill,
                       const std::function<void(int64_t, const at::Tensor&)>& take) {
  const auto width = static_cast<int64_t>(c10::elementSize(dtype));
  const int64_t piece = kPieceBytes / width;
  for (int64_t begin = 0; begin < size; begin += piece) {
    Buffer& buffer = buffers_[next_++ % buffers_.size()];
    if (!buffer.host.defined())
      buffer.host = at::empty({kPieceBytes}, host_options(at::kByte, device_));
    shard::SideStream::synchronize(buffer.sent);
    const int64_t count = std::min(piece, size - begin);
    auto* const bytes = static_cast<std::byte*>(buffer.host.mutable_data_ptr());
    at::parallel_for(0, count, kFillGrain, [&](int64_t first, int64_t end) {
      fill(begin + first, {bytes + first * width, static_cast<size_t>((end - first) * width)});
    });
    const at::Tensor host = buffer.host.narrow(0, 0, count * width).view(dtype);
    take(begin, host.to(device_, /*non_blocking=*/true));
    buffer.sent = side_.mark_current();
  }
}

}  // namespace xffl::train
