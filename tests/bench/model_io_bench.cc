// Loads a model as a job does, and writes it as an update is written; prints the seconds of each as
// JSON. Driven by model_io.py.
//
//   xffl-model-io-bench MODEL OUT cpu|cuda THREADS
#include <ATen/Parallel.h>
#include <torch/types.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "xffl/base/error.h"
#include "xffl/base/json.h"
#include "xffl/checkpoint/manifest.h"
#include "xffl/llama/weights.h"
#include "xffl/train/device.h"
#include "xffl/train/loaded_model.h"

namespace {

using namespace xffl;

double seconds_of(at::Device device, const std::function<void()>& body) {
  train::synchronize(device);
  const auto begin = std::chrono::steady_clock::now();
  body();
  train::synchronize(device);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void save(const train::LoadedModel& model, const std::filesystem::path& out) {
  at::Tensor flat_P;
  int unit = -1;
  const auto value = [&](size_t i) {
    if (model.specs[i].unit != unit)
      flat_P = model.parameters->gather_masters(unit = model.specs[i].unit).to(at::kFloat);
    return model.parameters->view(flat_P, i);
  };
  checkpoint::write_manifest(
      out, llama::write_model(out, model.config, model.specs, value, checkpoint::Dtype::kBF16));
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
  json["save"] = seconds_of(device, [&] { save(model, out); });
  return json;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  try {
    at::set_num_threads(std::atoi(argv[4]));
    const at::Device device(argv[3]);
    if (device.is_cuda()) at::empty({1}, at::TensorOptions().device(device));
    std::puts(measure(argv[1], argv[2], device).dump().c_str());
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
