#include "xffl/shard/optimizer.h"

#include <ATen/Parallel.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "xffl/base/error.h"
#include "xffl/kernels/cpu/optimizer.h"
#include "xffl/kernels/cuda/gpu.h"
#include "xffl/shard/side_stream.h"

namespace xffl::shard {

// Sends bfloat16 copies of the host's masters to the device, piece by piece. The host fills a piece
// while the device receives the previous piece.
class CopiesToDevice {
 public:
  explicit CopiesToDevice(at::Device device) : device_(device), side_(device) {}

  static constexpr int64_t kPieceElements = 8 << 20;

  /// Returns host memory for `count` elements, after the previous send from this memory.
  at::Tensor piece(int64_t count) {
    Buffer& buffer = buffers_[next_];
    if (!buffer.host.defined())
      buffer.host =
          at::empty({kPieceElements},
                    at::TensorOptions().dtype(at::kBFloat16).pinned_memory(device_.is_cuda()));
    SideStream::synchronize(buffer.sent);
    return buffer.host.narrow(0, 0, count);
  }

  /// Sends the memory of the last piece() to `to`.
  void send(const at::Tensor& host, at::Tensor to) {
    Buffer& buffer = buffers_[next_];
    buffer.sent = last_ = side_.run([&] { to.copy_(host, /*non_blocking=*/true); });
    next_ = 1 - next_;
  }

  /// Makes later work of the current stream wait until all pieces are on the device.
  void finish() { side_.wait(last_); }

 private:
  struct Buffer {
    at::Tensor host;
    SideStream::Mark sent;
  };
  at::Device device_;
  SideStream side_;
  std::array<Buffer, 2> buffers_;
  size_t next_ = 0;
  SideStream::Mark last_;
};

namespace {

constexpr int64_t kGrain = 1 << 15;  // elements that are worth a thread

kernels::AdamwFactors factors_of(const OptimizerOptions& options, double learning_rate,
                                 double gradient_factor, int64_t num_steps, bool decay) {
  const auto t = static_cast<double>(num_steps);
  const auto f = [](double value) { return static_cast<float>(value); };
  const bool coupled = options.kind == job::OptimizerKind::kAdam;
  return {f(gradient_factor),
          f(1 - options.beta1),
          f(1 - options.beta2),
          f(options.beta2),
          f(decay && !coupled ? learning_rate * options.weight_decay : 0.0),
          f(learning_rate / (1 - std::pow(options.beta1, t))),
          f(std::sqrt(1 - std::pow(options.beta2, t))),
          f(options.epsilon),
          f(decay && coupled ? options.weight_decay : 0.0)};
}

kernels::SgdFactors sgd_factors_of(const OptimizerOptions& options, double learning_rate,
                                   double gradient_factor, bool decay) {
  const auto f = [](double value) { return static_cast<float>(value); };
  return {f(gradient_factor),
          f(decay ? options.weight_decay : 0.0),
          f(options.momentum),
          options.nesterov ? 1.0f : 0.0f,
          options.nesterov ? f(options.momentum) : 1.0f,
          f(learning_rate)};
}

kernels::Stored stored(const at::Tensor& x) {
  if (!x.defined()) return {};
  if (x.scalar_type() == at::kFloat) return {x.mutable_data_ptr<float>(), nullptr};
  return {nullptr, static_cast<uint16_t*>(x.mutable_data_ptr())};
}

uint16_t* bits_of(const at::Tensor& x) {
  return x.defined() ? static_cast<uint16_t*>(x.mutable_data_ptr()) : nullptr;
}

at::Tensor of_unit(const std::vector<at::Tensor>& moments, size_t unit) {
  return moments.empty() ? at::Tensor() : moments[unit];
}

// Whether the kernel can write the copy in the same pass as float32 masters.
bool is_written_along(const UnitState& state) {
  return state.copy_S.defined() && state.copy_S.scalar_type() == at::kBFloat16 &&
         state.master_S.scalar_type() == at::kFloat;
}

}  // namespace

OptimizerOptions optimizer_options(const job::TrainingSpec& training) {
  return {training.beta1,
          training.beta2,
          training.epsilon,
          training.weight_decay,
          training.moment_dtype == job::StateDtype::kFloat32 ? at::kFloat : at::kBFloat16,
          training.optimizer,
          training.momentum,
          training.nesterov};
}

int OptimizerOptions::num_moments() const {
  if (kind != job::OptimizerKind::kSgd) return 2;
  return momentum > 0 ? 1 : 0;
}

Optimizer::Optimizer(FlatParameters& parameters, const OptimizerOptions& options)
    : parameters_(parameters), options_(options) {
  for (const UnitState& state : parameters_.states()) {
    const auto moment = state.master_S.options().dtype(options.moment_dtype);
    if (options.num_moments() > 0) first_moments_.push_back(at::zeros_like(state.master_S, moment));
    if (options.num_moments() > 1)
      second_moments_.push_back(at::zeros_like(state.master_S, moment));
  }
}

Optimizer::~Optimizer() = default;

// If `copy` is defined, the same pass writes it.
void Optimizer::step_on_range(size_t unit, const Range& range, const at::Tensor& copy,
                              double learning_rate, double gradient_factor) {
  const UnitState& state = parameters_.states()[unit];
  const kernels::OptimizerBuffers buffers{
      .master = stored(part_of(state.master_S, range)),
      .copy = bits_of(copy),
      .remainder = bits_of(part_of(state.remainder_S, range)),
      .gradient = stored(part_of(state.gradient_S, range)),
      .first = stored(part_of(of_unit(first_moments_, unit), range)),
      .second = stored(part_of(of_unit(second_moments_, unit), range))};
  const int64_t decayed = std::clamp(state.num_decayed - range.begin, int64_t{0}, range.count);
  for (const bool decay : {true, false}) {
    const auto run = [&](const auto& step) {
      at::parallel_for(decay ? 0 : decayed, decay ? decayed : range.count, kGrain, step);
    };
    if (options_.kind == job::OptimizerKind::kSgd) {
      const auto factors = sgd_factors_of(options_, learning_rate, gradient_factor, decay);
      run([&](int64_t begin, int64_t end) { kernels::sgd_on_cpu(buffers, begin, end, factors); });
    } else {
      const auto factors = factors_of(options_, learning_rate, gradient_factor, num_steps_, decay);
      run([&](int64_t begin, int64_t end) { kernels::adamw_on_cpu(buffers, begin, end, factors); });
    }
  }
}

void Optimizer::step_and_send(size_t unit, double learning_rate, double gradient_factor) {
  const at::Tensor& copy_S = parameters_.states()[unit].copy_S;
  if (!to_device_) to_device_ = std::make_unique<CopiesToDevice>(copy_S.device());
  constexpr int64_t kPiece = CopiesToDevice::kPieceElements;
  for (int64_t begin = 0; begin < copy_S.numel(); begin += kPiece) {
    const Range range{begin, std::min(kPiece, copy_S.numel() - begin)};
    const at::Tensor host = to_device_->piece(range.count);
    step_on_range(unit, range, host, learning_rate, gradient_factor);
    to_device_->send(host, part_of(copy_S, range));
  }
}

// Returns false if the unit's buffers are not on a GPU.
bool Optimizer::step_on_gpu(size_t unit, double learning_rate, double gradient_factor) {
  const UnitState& state = parameters_.states()[unit];
  const at::Tensor first_S = of_unit(first_moments_, unit),
                   second_S = of_unit(second_moments_, unit);
  const kernels::gpu::OptimizerTensors tensors{
      state.master_S, state.remainder_S, state.gradient_S, state.copy_S,
      first_S,        second_S,          state.num_decayed};
  if (options_.kind == job::OptimizerKind::kSgd)
    return kernels::gpu::sgd(tensors, {learning_rate, options_.momentum, options_.weight_decay,
                                       gradient_factor, options_.nesterov});
  return kernels::gpu::adamw(tensors, {learning_rate, options_.beta1, options_.beta2,
                                       options_.epsilon, options_.weight_decay, gradient_factor,
                                       num_steps_, options_.kind == job::OptimizerKind::kAdam});
}

// Returns whether the copy, if there is one, is fresh afterwards.
bool Optimizer::step_on_unit(size_t unit, double learning_rate, double gradient_factor) {
  const UnitState& state = parameters_.states()[unit];
  if (step_on_gpu(unit, learning_rate, gradient_factor)) return true;
  if (!state.master_S.is_cpu())
    throw Error(ErrorKind::kInternal, "shard::Optimizer: this build has no kernel for unit " +
                                          std::to_string(unit) + " on " +
                                          state.master_S.device().str());
  const bool along = is_written_along(state);
  if (along && !state.copy_S.is_cpu()) {
    step_and_send(unit, learning_rate, gradient_factor);
  } else {
    step_on_range(unit, {0, state.master_S.numel()}, along ? state.copy_S : at::Tensor(),
                  learning_rate, gradient_factor);
  }
  return !state.copy_S.defined() || along;
}

void Optimizer::step(double learning_rate, double gradient_factor) {
  num_steps_ += 1;
  parameters_.finish_gathers();
  bool fresh = true;
  for (size_t unit = 0; unit < parameters_.states().size(); ++unit)
    fresh = step_on_unit(unit, learning_rate, gradient_factor) && fresh;
  if (to_device_) to_device_->finish();
  parameters_.refresh_compute(fresh);
}

}  // namespace xffl::shard
