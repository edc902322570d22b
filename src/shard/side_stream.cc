#include "xffl/shard/side_stream.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/types.h>

namespace xffl::shard {
namespace {

c10::Stream current_stream(at::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

SideStream::Mark end_of(const c10::Stream& stream) {
  auto event = std::make_shared<c10::Event>(stream.device_type());
  event->record(stream);
  return event;
}

}  // namespace

SideStream::SideStream(at::Device device) : device_(device) {
  if (device.is_cuda())
    stream_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

SideStream::Mark SideStream::run(const std::function<void()>& work) {
  if (!stream_) {
    work();
    return nullptr;
  }
  end_of(current_stream(device_))->block(*stream_);
  const c10::StreamGuard guard(*stream_);
  work();
  return end_of(*stream_);
}

void SideStream::keep(const at::Tensor& x) const {
  if (stream_ && x.is_cuda()) x.record_stream(*stream_);
}

void SideStream::wait(const Mark& mark) const {
  if (mark) mark->block(current_stream(device_));
}

void SideStream::synchronize(const Mark& mark) {
  if (mark) mark->synchronize();
}

SideStream::Mark SideStream::mark_current() const {
  return stream_ ? end_of(current_stream(device_)) : nullptr;
}

}  // namespace xffl::shard
