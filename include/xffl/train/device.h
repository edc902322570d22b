// The devices of this machine, what they are called and how much memory was used; and threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "xffl/comm/rendezvous.h"

namespace xffl::train {

/// "auto": the GPU local_rank (or the only one that is visible) where there is one, else the CPU;
/// "cpu"; "cuda". Throws kUsage for another word and for a rank without a GPU of its own,
/// kUnsupported for "cuda" without CUDA in the build or
/// without a GPU.
at::Device choose_device(const std::string& wanted, int local_rank);

/// The largest resident set of this process, or what was allocated at most on its GPU.
int64_t peak_memory_bytes(at::Device device);

/// A GPU's free memory, beside CUDA's context of this process; of this machine, what is free or can
/// be freed, within the limits of control groups (0 where nothing tells).
int64_t available_memory_bytes(at::Device device);

struct GpuInfo {
  std::string name;
  int64_t memory_bytes = 0;
  std::string capability;  // "9.0"
};
std::vector<GpuInfo> list_gpus();
bool has_cuda();

/// Waits for the work queued on a GPU, so that a clock measures it.
void synchronize(at::Device device);

/// What is freed stays with the process for its next use. One step allocates what the former freed:
/// given back to the kernel and taken anew, page by page, it costs a tenth of a step on a CPU.
void keep_freed_memory();

/// The same bits again for the same work on the same devices and ranks. On CPUs this is so in any
/// case; on a GPU it takes the operators that are, which cost time. For the whole process, before
/// its first work on the GPU.
void use_deterministic_algorithms(at::Device device);

/// For work on sequences of ever new lengths (documents apart, tokens one by one): cuDNN's
/// attention, which PyTorch prefers on H100 and H200, prepares a plan for each length, in tenths of
/// a second; flash attention has none. For the whole process.
void use_attention_of_any_length(at::Device device);

/// `wanted`, else OMP_NUM_THREADS, else an equal share of the CPUs for each rank of this machine
/// (all of them where Slurm binds ranks to CPUs of their own).
int choose_threads(int wanted, const comm::Rendezvous& rendezvous,
                   const comm::Environment& environment);

}  // namespace xffl::train
