#include <chrono>

#include "gpu_test.h"
#include "metrics.h"
#include "xffl/kernels/cuda/gpu.h"

namespace xffl::train {
namespace {

class PhaseClockOnGpu : public GpuTest {};

// Queueing products takes far less than their tens of milliseconds: events must measure the stream.
TEST_F(PhaseClockOnGpu, MeasuresTheStreamWithoutWaiting) {
  const at::Tensor factor = at::ones({8192, 8192}, at::dtype(at::kBFloat16).device(kGpu));
  at::mm(factor, factor);
  kernels::gpu::synchronize(kGpu);
  PhaseClock clock(kGpu);
  for (int step = 0; step < 2; ++step) {  // the second step reuses the events of the first
    const auto begin = std::chrono::steady_clock::now();
    clock.enter(StepPhase::kForward);
    for (int i = 0; i < 12; ++i) at::mm(factor, factor);
    clock.enter(StepPhase::kNorm);
    clock.enter(StepPhase::kOther);
    const std::chrono::duration<double> queued = std::chrono::steady_clock::now() - begin;
    kernels::gpu::synchronize(kGpu);
    const std::chrono::duration<double> done = std::chrono::steady_clock::now() - begin;
    const PhaseSeconds seconds = clock.read();
    EXPECT_LT(queued.count(), seconds[StepPhase::kForward] / 2) << "enter() waited for the GPU";
    EXPECT_GT(seconds[StepPhase::kForward], done.count() / 2);
    EXPECT_LE(seconds[StepPhase::kForward] + seconds[StepPhase::kNorm], done.count());
    EXPECT_EQ(
        seconds[StepPhase::kHead] + seconds[StepPhase::kBackward] + seconds[StepPhase::kAdamw], 0);
  }
}

}  // namespace
}  // namespace xffl::train
