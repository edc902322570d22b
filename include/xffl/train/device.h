// The devices of this machine, their memory, and the number of threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "xffl/comm/rendezvous.h"
#include "xffl/job/job_spec.h"

namespace xffl::train {

/// Chooses a device for "cpu", "cuda" or "auto". "auto" is GPU number local_rank (or the only
/// visible GPU) modulo the number of GPUs, else the CPU. Throws kUsage for another word,
/// kUnsupported for "cuda" in a build without CUDA or without a GPU, and for "cuda" and "auto" with
/// a driver that is too old for this build.
at::Device choose_device(const std::string& wanted, int local_rank);

/// Names a GPU among those of all machines, by host and PCI address; "" for the CPU.
std::string device_name(at::Device device);

/// The peak resident set of this process, or the peak of this process's allocations on a GPU.
int64_t peak_memory_bytes(at::Device device);

/// The seconds since the start of this process, with the loading of its libraries.
double process_seconds();

/// A GPU's free memory after this process's CUDA context. For the CPU the free and reclaimable
/// memory of this machine within the limits of control groups; 0 if unknown.
int64_t available_memory_bytes(at::Device device);

/// Keeps freed memory in the process. A step allocates the memory that the previous step freed.
/// Returning that memory to the kernel and faulting it in again costs a tenth of a step on a CPU.
void keep_freed_memory();

/// Makes results reproducible bit for bit on the same devices and ranks. A CPU's results always
/// are; a GPU needs slower deterministic operators. Applies to the whole process; call it before
/// the first work on the GPU.
void use_deterministic_algorithms(at::Device device);

/// Avoids cuDNN's attention for work on sequences of many lengths (masked documents, token by
/// token). cuDNN prepares a plan for each length, which takes tenths of a second, and PyTorch
/// prefers cuDNN on H100 and H200. Flash attention needs no plan. Applies to the whole process.
void use_attention_of_any_length(at::Device device);

/// Makes a GPU's attention use `kernel` alone, unless it is kAuto. Applies to the whole process.
void use_attention(job::AttentionKernel kernel, at::Device device);

/// Returns `wanted`, else OMP_NUM_THREADS, else an equal share of the CPUs for each rank of this
/// machine (all available CPUs if Slurm binds ranks to CPUs).
int choose_threads(int wanted, const comm::Rendezvous& rendezvous,
                   const comm::Environment& environment);

}  // namespace xffl::train
