#include "xffl/train/environment.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <memory>

#include "xffl/base/resources.h"
#include "xffl/comm/group.h"
#include "xffl/kernels/cuda/gpu.h"
#include "xffl/train/gpu_driver.h"

namespace xffl::train {
namespace {

// "13.0", from CUDA's number 13000.
std::string cuda_version_text(int version) {
  if (version == 0) return "";
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string describe_gpu(const kernels::gpu::Info& gpu) {
  return gpu.name + ", " + std::to_string(gpu.memory_bytes / 1'000'000'000) + " GB, sm_" +
         std::string(gpu.capability)
             .erase(std::min(gpu.capability.find('.'), gpu.capability.size()), 1);
}

std::string describe_interface(const NetworkInterface& interface) {
  if (interface.megabits_per_second == 0) return interface.name;
  return interface.name + " " + std::to_string(interface.megabits_per_second) + " Mb/s";
}

int64_t speed_of(const std::string& name) {
  int64_t speed = 0;
  std::ifstream file("/sys/class/net/" + name + "/speed");
  return file >> speed && speed > 0 ? speed : 0;  // -1 without a link
}

std::string address_text(const sockaddr& address) {
  char text[INET6_ADDRSTRLEN] = "";
  const void* bytes =
      address.sa_family == AF_INET
          ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in&>(address).sin_addr)
          : &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  return inet_ntop(address.sa_family, bytes, text, sizeof text) != nullptr ? text : "";
}

std::vector<std::string> infiniband_devices() {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry("/sys/class/infiniband", error);
       !error && entry != std::filesystem::directory_iterator(); entry.increment(error))
    names.push_back(entry->path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

std::string driver_version(const std::filesystem::path& version_file) {
  std::ifstream file(version_file);
  std::string line;
  std::getline(file, line);
  constexpr std::string_view kBefore = "Kernel Module";
  const size_t begin = line.find(kBefore);
  if (!line.starts_with("NVRM version:") || begin == std::string::npos) return "";
  // The version stands between double spaces.
  const size_t before = line.find("  ", begin);
  if (before == std::string::npos) return "";
  const size_t first = line.find_first_not_of(' ', before);
  if (first == std::string::npos) return "";
  const std::string version =
      line.substr(first, std::min<size_t>(line.find(' ', first) - first, 40));
  return version.find_first_not_of("0123456789.") == std::string::npos ? version : "";
}

std::vector<NetworkInterface> network_interfaces() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, freeifaddrs);
  std::map<std::string, NetworkInterface> found;
  for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
    if ((each->ifa_flags & IFF_UP) == 0 || (each->ifa_flags & IFF_LOOPBACK) != 0) continue;
    NetworkInterface& interface = found[each->ifa_name];
    if (interface.name.empty()) {
      interface.name = each->ifa_name;
      interface.megabits_per_second = speed_of(interface.name);
    }
    if (each->ifa_addr == nullptr ||
        (each->ifa_addr->sa_family != AF_INET && each->ifa_addr->sa_family != AF_INET6))
      continue;
    if (std::string text = address_text(*each->ifa_addr); !text.empty())
      interface.addresses.push_back(std::move(text));
  }
  std::vector<NetworkInterface> interfaces;
  for (auto& [name, interface] : found) interfaces.push_back(std::move(interface));
  return interfaces;
}

job::TrainerEnvironment trainer_environment() {
  job::TrainerEnvironment found;
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  found.host = host;
  utsname system{};
  if (uname(&system) == 0)
    found.system = std::string(system.sysname) + " " + system.release + " " + system.machine;
  found.torch = TORCH_VERSION;
  found.cpu_capability = at::get_cpu_capability();
  found.cpus = available_cpus();
  found.threads = at::get_num_threads();
  found.memory_bytes = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  struct statvfs shm {};
  if (statvfs("/dev/shm", &shm) == 0) {
    const auto block = static_cast<int64_t>(shm.f_frsize);
    found.shm_bytes = static_cast<int64_t>(shm.f_blocks) * block;
    found.shm_free_bytes = static_cast<int64_t>(shm.f_bavail) * block;
  }
  found.cuda = cuda_version_text(kernels::gpu::cuda_version());
  found.cudnn = kernels::gpu::cudnn_version();
  found.nccl = comm::nccl_version();
  found.driver = driver_version(driver_version_file());
  found.architectures = kernels::gpu::architectures();
  for (const kernels::gpu::Info& gpu : kernels::gpu::list())
    found.gpus.push_back(describe_gpu(gpu));
  for (const NetworkInterface& each : network_interfaces())
    found.interfaces.push_back(describe_interface(each));
  found.infiniband = infiniband_devices();
  return found;
}

}  // namespace xffl::train
