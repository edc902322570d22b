// The energy that this rank's GPU has used, by NVIDIA's management library (NVML).
//
// Source: NVML API Reference, nvmlDeviceGetTotalEnergyConsumption: millijoules since the driver was
// loaded, from the Volta generation on. The figure is of the GPU alone: not of processors, memory
// or network.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace xffl::train {

class GpuEnergy {
 public:
  /// Begins to measure the GPU with this PCI address ("0000:3b:00.0"); opens the node's
  /// libnvidia-ml.so.1 (XFFL_NVML_LIBRARY: another file, for tests). Never throws: a GPU that
  /// cannot be measured is logged at the level debug.
  explicit GpuEnergy(const std::string& pci_address);
  ~GpuEnergy();
  GpuEnergy(const GpuEnergy&) = delete;
  GpuEnergy& operator=(const GpuEnergy&) = delete;

  /// Joules since the construction. Absent where nothing was measured: no library, an older
  /// GPU, a GPU in parts (MIG), whose counter includes other jobs, or a counter that began anew.
  std::optional<int64_t> joules() const;

 private:
  class Library;
  std::unique_ptr<const Library> library_;  // null: not measured
  std::optional<int64_t> begin_;
};

}  // namespace xffl::train
