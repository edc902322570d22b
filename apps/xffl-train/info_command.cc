#include <cstdio>

#include "commands.h"
#include "xffl/base/json.h"
#include "xffl/comm/group.h"
#include "xffl/kernels/cuda/gpu.h"
#include "xffl/train/device.h"
#include "xffl/train/environment.h"

namespace xffl::train_app {
namespace {

// The environment of a report, and the facts of this process.
Json collect(const CommonOptions& common) {
  const comm::Environment environment = comm::process_environment();
  const comm::Rendezvous rendezvous = comm::read_rendezvous(environment);
  job::TrainerEnvironment found = train::trainer_environment();
  found.threads = train::choose_threads(common.threads, rendezvous, environment);
  Json json{{"version", XFFL_VERSION}};
  json.update(job::environment_json(found));
  json.erase("backend");  // of a group, and there is none
  json["has_cuda"] = kernels::gpu::kBuiltIn;
  json["has_nccl"] = comm::has_nccl();
  json["has_gloo"] = comm::has_gloo();
  json["rank"] = rendezvous.rank;
  json["world_size"] = rendezvous.world_size;
  json["addresses"] = Json::object();
  for (const train::NetworkInterface& each : train::network_interfaces())
    json["addresses"][each.name] = each.addresses;
  return json;
}

std::string text_of(const Json& value) {
  if (value.is_string()) return value.get<std::string>().empty() ? "-" : value.get<std::string>();
  if (!value.is_array()) return value.dump();
  std::string text;
  for (const Json& each : value) text += (text.empty() ? "" : ", ") + text_of(each);
  return text.empty() ? "-" : text;
}

}  // namespace

void info_command(const CommonOptions& common, bool json) {
  const Json info = collect(common);
  if (json) {
    std::puts(info.dump().c_str());
    return;
  }
  for (const auto& [key, value] : info.items()) {
    if (!value.is_object()) {
      std::printf("%-16s%s\n", key.c_str(), text_of(value).c_str());
      continue;
    }
    for (const auto& [name, inner] : value.items())
      std::printf("%-16s%s: %s\n", key.c_str(), name.c_str(), text_of(inner).c_str());
  }
}

}  // namespace xffl::train_app
