#include "xffl/train/device.h"

#include <ATen/Context.h>
#include <sys/resource.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>

#include "xffl/base/error.h"
#include "xffl/base/resources.h"
#include "xffl/kernels/cuda/gpu.h"
#include "xffl/train/gpu_driver.h"

namespace xffl::train {
namespace {

int number_or_zero(const std::optional<std::string>& text) {
  int number = 0;
  if (text) std::from_chars(text->data(), text->data() + text->size(), number);
  return std::max(number, 0);
}

}  // namespace

at::Device choose_device(const std::string& wanted, int local_rank) {
  if (wanted != "auto" && wanted != "cpu" && wanted != "cuda") {
    throw Error(ErrorKind::kUsage, "--device is '" + wanted + "', expected auto, cpu or cuda");
  }
  // PYTORCH_CUDA_ALLOC_CONF must be set before CUDA starts. Expandable segments fragment less when
  // a job allocates and frees units of different sizes.
  if (std::getenv("PYTORCH_CUDA_ALLOC_CONF") == nullptr &&
      std::getenv("PYTORCH_ALLOC_CONF") == nullptr)
    ::setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", 0);
  const int num_gpus = wanted == "cpu" ? 0 : kernels::gpu::device_count();
  if (wanted != "cpu" && num_gpus == 0) {
    const std::string problem = driver_problem(kernels::gpu::cuda_version(), driver_version_file());
    if (!problem.empty())
      throw Error(ErrorKind::kUnsupported, "--device " + wanted + ": " + problem);
  }
  if (wanted == "cuda" && num_gpus == 0) {
    throw Error(
        ErrorKind::kUnsupported,
        kernels::gpu::kBuiltIn
            ? "--device cuda: no GPU is visible to this process (check CUDA_VISIBLE_DEVICES)"
            : "--device cuda: this xffl-train was built without CUDA; build it with the "
              "preset trainer-cuda");
  }
  if (num_gpus == 0) return at::kCPU;
  // Slurm may show each rank only its own GPU. More ranks than GPUs share them: see
  // comm::make_group().
  const at::Device device(at::kCUDA, static_cast<at::DeviceIndex>(local_rank % num_gpus));
  kernels::gpu::use(device);
  return device;
}

std::string device_name(at::Device device) {
  if (!device.is_cuda()) return "";
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  return host + std::string("/") +
         kernels::gpu::list().at(static_cast<size_t>(device.index())).pci_address;
}

int64_t peak_memory_bytes(at::Device device) {
  if (device.is_cuda()) return kernels::gpu::peak_memory_bytes(device);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<int64_t>(usage.ru_maxrss) * 1024;
}

double process_seconds() {
  // The start time is field 22 of /proc/self/stat, in ticks since the machine's start. The
  // process's name, which may hold spaces, ends at the last ')'.
  std::ifstream stat("/proc/self/stat"), uptime("/proc/uptime");
  std::string text;
  double now = 0;
  if (!std::getline(stat, text) || !(uptime >> now)) return 0;
  std::istringstream fields(text.substr(std::min(text.rfind(')'), text.size() - 1) + 1));
  std::string skipped;
  for (int field = 3; field < 22; ++field) fields >> skipped;
  double start = 0;
  if (!(fields >> start)) return 0;
  return std::max(0.0, now - start / static_cast<double>(sysconf(_SC_CLK_TCK)));
}

int64_t available_memory_bytes(at::Device device) {
  if (device.is_cuda()) return kernels::gpu::free_memory_bytes(device);
  return available_memory();
}

void keep_freed_memory() {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, 32 << 20);  // the largest value that glibc accepts
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
#endif
}

void use_deterministic_algorithms(at::Device device) {
  if (!device.is_cuda()) return;
  // cuBLAS reads the variable at its start: workspaces of fixed sizes are not shared between
  // streams.
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 0);
  at::Context& context = at::globalContext();
  context.setDeterministicAlgorithms(true, false);
  context.setDeterministicFillUninitializedMemory(false);  // no code reads uninitialized memory
  context.setDeterministicCuDNN(true);
  context.setBenchmarkCuDNN(false);
  context.setSDPUseCuDNN(false);  // cuDNN's backward adds in the order in which thread blocks end
}

void use_attention(job::AttentionKernel kernel, at::Device device) {
  using enum job::AttentionKernel;
  if (kernel == kAuto || !device.is_cuda()) return;
  at::Context& context = at::globalContext();
  context.setSDPUseFlash(kernel == kFlash);
  context.setSDPUseCuDNN(kernel == kCudnn);
  context.setSDPUseMemEfficient(kernel == kEfficient);
  context.setSDPUseMath(kernel == kMath);
}

void use_attention_of_any_length(at::Device device) {
  if (device.is_cuda()) at::globalContext().setSDPUseCuDNN(false);
}

int choose_threads(int wanted, const comm::Rendezvous& rendezvous,
                   const comm::Environment& environment) {
  if (wanted > 0) return wanted;
  if (const int omp = number_or_zero(environment("OMP_NUM_THREADS")); omp > 0) return omp;
  const int cpus = available_cpus();
  if (const int slurm = number_or_zero(environment("SLURM_CPUS_PER_TASK")); slurm > 0)
    return std::min(slurm, cpus);
  return std::max(1, cpus / rendezvous.local_world_size);
}

}  // namespace xffl::train
