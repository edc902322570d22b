// Loads a model like a job and writes it like an update; prints the seconds of both as JSON. Run by
// model_io.py.
//
//   xffl-model-io-bench MODEL OUT cpu|cuda THREADS
#include <ATen/Parallel.h>
#include <torch/types.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string_view>

#include "update.h"
#include "xffl/base/error.h"
#include "xffl/base/json.h"
#include "xffl/checkpoint/manifest.h"
#include "xffl/comm/group.h"
#include "xffl/kernels/cuda/gpu.h"
#include "xffl/llama/model_files.h"
#include "xffl/train/device.h"
#include "xffl/train/loaded_model.h"

namespace {

using namespace xffl;

double seconds_of(at::Device device, const std::function<void()>& body) {
  kernels::gpu::synchronize(device);
  const auto begin = std::chrono::steady_clock::now();
  body();
  kernels::gpu::synchronize(device);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void save(const train::LoadedModel& model, at::Device device, const std::filesystem::path& out) {
  const std::unique_ptr<comm::Group> single_rank = comm::make_single_rank();
  train::Pipeline pipeline(*single_rank, 1, device);
  train::MasterStream masters(model, *single_rank, pipeline, device);
  const auto values = [&](size_t i) { return masters.values(i, at::kBFloat16); };
  checkpoint::write_manifest(
      out, llama::write_model(out, model.config, model.specs, values, checkpoint::Dtype::kBF16));
}

Json measure(const std::filesystem::path& folder, const std::filesystem::path& out,
             at::Device device) {
  train::LoadOptions options;
  options.device = device;
  options.precision = job::FloatType::kBfloat16;
  train::LoadedModel model;
  Json json;
  json["check"] = seconds_of(
      device, [&] { checkpoint::verify_folder(folder, checkpoint::read_manifest(folder)); });
  json["load"] = seconds_of(device, [&] { model = train::load_model(folder, options); });
  json["save"] = seconds_of(device, [&] { save(model, device, out); });
  return json;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  try {
    train::keep_freed_memory();  // as xffl-train does
    at::set_num_threads(std::atoi(argv[4]));
    const bool on_gpu = std::string_view(argv[3]) == "cuda";
    const at::Device device = on_gpu ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);
    if (device.is_cuda()) at::empty({1}, at::TensorOptions().device(device));
    std::puts(measure(argv[1], argv[2], device).dump().c_str());
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
