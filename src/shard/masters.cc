#include "xffl/shard/masters.h"

#include <ATen/Parallel.h>
#include <torch/types.h>

#include <algorithm>

#include "gpu_kernels.h"
#include "xffl/base/error.h"
#include "xffl/kernels/cpu/optimizer.h"
#include "xffl/shard/flat_parameters.h"

namespace xffl::shard {
namespace {

constexpr int64_t kGrainOfMasters = 1 << 15;  // elements that are worth a thread

uint16_t* master_bits(const at::Tensor& x) { return static_cast<uint16_t*>(x.mutable_data_ptr()); }

[[noreturn]] void throw_no_kernel(const at::Tensor& x) {
  throw Error(ErrorKind::kInternal,
              "shard: this build has no kernel for masters in two parts on " + x.device().str());
}

}  // namespace

at::Tensor join_masters(const at::Tensor& weight, const at::Tensor& remainder) {
  at::Tensor master = at::empty(weight.sizes(), weight.options().dtype(at::kFloat));
  if (gpu::join_masters(weight, remainder, master)) return master;
  if (!weight.is_cpu()) throw_no_kernel(weight);
  at::parallel_for(0, master.numel(), kGrainOfMasters, [&](int64_t begin, int64_t end) {
    kernels::join_masters_on_cpu(master_bits(weight) + begin, master_bits(remainder) + begin,
                                 master.mutable_data_ptr<float>() + begin, end - begin);
  });
  return master;
}

void split_masters(const at::Tensor& master, const at::Tensor& weight,
                   const at::Tensor& remainder) {
  if (gpu::split_masters(master, weight, remainder)) return;
  if (!weight.is_cpu()) throw_no_kernel(weight);
  at::parallel_for(0, master.numel(), kGrainOfMasters, [&](int64_t begin, int64_t end) {
    kernels::split_masters_on_cpu(master.const_data_ptr<float>() + begin,
                                  master_bits(weight) + begin, master_bits(remainder) + begin,
                                  end - begin);
  });
}

at::Tensor masters_of(const UnitState& state, const Range& range) {
  const at::Tensor stored = state.master_S.narrow(0, range.begin, range.count);
  if (state.remainder_S.defined())
    return join_masters(stored, state.remainder_S.narrow(0, range.begin, range.count));
  return stored.to(at::kFloat);  // a float32 tensor itself
}

void set_masters(const UnitState& state, const Range& range, const at::Tensor& values) {
  const at::Tensor stored = state.master_S.narrow(0, range.begin, range.count);
  if (state.remainder_S.defined()) {
    const at::Tensor here = values.to(stored.device(), at::kFloat).contiguous();
    return split_masters(here, stored, state.remainder_S.narrow(0, range.begin, range.count));
  }
  if (values.data_ptr() != stored.data_ptr()) stored.copy_(values);
}

void read_masters(const UnitState& state, int64_t begin, std::span<float> out) {
  const auto size = static_cast<int64_t>(out.size());
  if (state.master_S.scalar_type() == at::kFloat) {
    std::copy_n(state.master_S.const_data_ptr<float>() + begin, size, out.data());
  } else if (state.remainder_S.defined()) {
    kernels::join_masters_on_cpu(master_bits(state.master_S) + begin,
                                 master_bits(state.remainder_S) + begin, out.data(), size);
  } else {
    at::from_blob(out.data(), {size}).copy_(state.master_S.narrow(0, begin, size));
  }
}

void store_masters(const UnitState& state, int64_t begin, std::span<const float> values) {
  const Range range{begin, static_cast<int64_t>(values.size())};
  const at::Tensor wide = at::from_blob(const_cast<float*>(values.data()), {range.count});
  set_masters(state, range, wide);
  if (state.copy_S.defined() && state.copy_S.is_cpu())
    state.copy_S.narrow(0, begin, range.count).copy_(wide);
}

}  // namespace xffl::shard
