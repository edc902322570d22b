#include "gpu_energy.h"

#include <dlfcn.h>

#include <cstdlib>
#include <limits>

#include "xffl/base/log.h"

namespace xffl::train {
namespace {

// The types and values of nvml.h, which no build here needs otherwise.
using NvmlDevice = void*;
constexpr int kNvmlSuccess = 0;
constexpr unsigned kMigEnabled = 1;

std::string nvml_library() {
  const char* other = std::getenv("XFFL_NVML_LIBRARY");
  return other != nullptr ? other : "libnvidia-ml.so.1";
}

}  // namespace

class GpuEnergy::Library {
 public:
  // Null with the reason in `problem` when the GPU cannot be measured.
  static std::unique_ptr<const Library> open(const std::string& pci_address, std::string& problem) {
    std::unique_ptr<Library> library(new Library);
    if (!library->start(pci_address, problem)) return nullptr;
    return library;
  }
  ~Library() {
    if (shutdown_ != nullptr) shutdown_();
    if (handle_ != nullptr) ::dlclose(handle_);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  std::optional<int64_t> total() const {
    unsigned long long value = 0;
    if (energy_(device_, &value) != kNvmlSuccess ||
        value > static_cast<unsigned long long>(std::numeric_limits<int64_t>::max()))
      return std::nullopt;
    return static_cast<int64_t>(value);
  }

 private:
  Library() = default;

  template <class Function>
  bool find(const char* name, Function*& function) {
    function = reinterpret_cast<Function*>(::dlsym(handle_, name));
    return function != nullptr;
  }

  bool start(const std::string& pci_address, std::string& problem) {
    handle_ = ::dlopen(nvml_library().c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ == nullptr) {
      const char* reason = ::dlerror();
      problem = reason != nullptr ? reason : "dlopen failed";
      return false;
    }
    int (*init)() = nullptr;
    int (*shutdown)() = nullptr;
    int (*by_address)(const char*, NvmlDevice*) = nullptr;
    int (*mig_mode)(NvmlDevice, unsigned*, unsigned*) = nullptr;
    if (!find("nvmlInit_v2", init) || !find("nvmlShutdown", shutdown) ||
        !find("nvmlDeviceGetHandleByPciBusId_v2", by_address) ||
        !find("nvmlDeviceGetTotalEnergyConsumption", energy_)) {
      problem = "the library lacks a function";
      return false;
    }
    if (init() != kNvmlSuccess) {
      problem = "nvmlInit_v2 failed";
      return false;
    }
    shutdown_ = shutdown;
    if (by_address(pci_address.c_str(), &device_) != kNvmlSuccess) {
      problem = "no GPU at " + pci_address;
      return false;
    }
    unsigned now = 0, later = 0;
    if (find("nvmlDeviceGetMigMode", mig_mode) && mig_mode(device_, &now, &later) == kNvmlSuccess &&
        now == kMigEnabled) {
      problem = "the GPU is shared in parts (MIG)";
      return false;
    }
    if (!total()) {
      problem = "the GPU has no counter";
      return false;
    }
    return true;
  }

  void* handle_ = nullptr;
  NvmlDevice device_ = nullptr;
  int (*shutdown_)() = nullptr;
  int (*energy_)(NvmlDevice, unsigned long long*) = nullptr;
};

GpuEnergy::GpuEnergy(const std::string& pci_address) {
  std::string problem;
  library_ = Library::open(pci_address, problem);
  if (library_)
    begin_ = library_->total();
  else
    log::debug("the energy of the GPU is not measured", {{"gpu", pci_address}, {"why", problem}});
}

GpuEnergy::~GpuEnergy() = default;

std::optional<int64_t> GpuEnergy::joules() const {
  if (!begin_) return std::nullopt;
  const std::optional<int64_t> now = library_->total();
  if (!now || *now < *begin_) return std::nullopt;
  return (*now - *begin_) / 1000;
}

}  // namespace xffl::train
