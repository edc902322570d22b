#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <torch/version.h>
#include <unistd.h>

#include <cstdio>

#include "commands.h"
#include "xffl/base/json.h"
#include "xffl/base/resources.h"
#include "xffl/kernels/cuda/gpu.h"
#include "xffl/train/device.h"

namespace xffl::train_app {
namespace {

Json collect(const CommonOptions& common) {
  const comm::Environment environment = comm::process_environment();
  const comm::Rendezvous rendezvous = comm::read_rendezvous(environment);
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  Json json;
  json["version"] = XFFL_VERSION;
  json["torch"] = TORCH_VERSION;
  json["host"] = host;
  json["cpu_capability"] = at::get_cpu_capability();
  json["cpus"] = available_cpus();
  json["threads"] = train::choose_threads(common.threads, rendezvous, environment);
  json["memory_bytes"] = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  json["rank"] = rendezvous.rank;
  json["world_size"] = rendezvous.world_size;
  json["gloo"] = comm::has_gloo();
  json["nccl"] = comm::has_nccl();
  json["cuda"] = kernels::gpu::kBuiltIn;
  json["gpus"] = Json::array();
  for (const kernels::gpu::Info& gpu : kernels::gpu::list()) {
    json["gpus"].push_back(
        {{"name", gpu.name}, {"memory_bytes", gpu.memory_bytes}, {"capability", gpu.capability}});
  }
  return json;
}

}  // namespace

void info_command(const CommonOptions& common, bool json) {
  const Json info = collect(common);
  if (json) {
    std::puts(info.dump().c_str());
    return;
  }
  for (const auto& [key, value] : info.items()) {
    const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
    std::printf("%-16s%s\n", key.c_str(), text.c_str());
  }
}

}  // namespace xffl::train_app
