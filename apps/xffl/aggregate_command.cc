#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "commands.h"
#include "fingerprint.h"
#include "xffl/aggregate/aggregate.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/checkpoint/manifest.h"
#include "xffl/checkpoint/model_folder.h"

namespace xffl {

namespace fs = std::filesystem;
using checkpoint::Dtype;

namespace {

struct Flags {
  std::string out;
  std::vector<std::string> folders;
  std::string weights;
  std::string dtype;
  int num_threads = 0;
};

std::vector<double> parse_weights(const std::string& text, size_t num_models) {
  if (text.empty()) return std::vector<double>(num_models, 1.0);
  std::vector<double> weights;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string part = text.substr(begin, end - begin);
    size_t used = 0;
    double weight = 0;
    try {
      weight = std::stod(part, &used);
    } catch (const std::logic_error&) {
      used = 0;
    }
    if (used == 0 || used != part.size() || !(weight > 0) || !std::isfinite(weight))
      throw Error(ErrorKind::kUsage, "--weights: '" + log::printable(part, 100) +
                                         "' is not a number above 0; expected such as 1,3,2.5");
    weights.push_back(weight);
    begin = end + 1;
  }
  if (weights.size() != num_models)
    throw Error(ErrorKind::kUsage, "--weights has " + std::to_string(weights.size()) +
                                       " numbers for " + std::to_string(num_models) +
                                       " models; give one per folder, in their order");
  return weights;
}

struct Size {
  uint64_t num_parameters = 0;
  uint64_t num_bytes = 0;
  Dtype dtype = Dtype::kF32;  // of most of its parameters
};

Size size_of(const fs::path& folder) {
  Size size;
  uint64_t by_type[3] = {};
  const Dtype types[] = {Dtype::kF32, Dtype::kBF16, Dtype::kF16};
  const checkpoint::ModelFolder model(folder);
  for (const checkpoint::TensorSpec& spec : model.tensors()) {
    size.num_parameters += static_cast<uint64_t>(spec.num_elements());
    size.num_bytes += spec.num_bytes();
    for (int i = 0; i < 3; ++i)
      if (spec.dtype == types[i]) by_type[i] += static_cast<uint64_t>(spec.num_elements());
  }
  size.dtype = types[std::max_element(by_type, by_type + 3) - by_type];
  return size;
}

Dtype parse_output_dtype(const std::string& name, Dtype otherwise) {
  if (name == "fp32") return Dtype::kF32;
  if (name == "bf16") return Dtype::kBF16;
  if (name == "fp16") return Dtype::kF16;
  return otherwise;
}

// A line on a terminal, nothing elsewhere.
std::function<void(uint64_t, uint64_t)> progress_line() {
  if (::isatty(STDERR_FILENO) == 0) return {};
  return [shown = -1](uint64_t done, uint64_t total) mutable {
    const int percent = static_cast<int>(total == 0 ? 100 : done * 100 / total);
    if (percent == shown) return;
    shown = percent;
    std::fprintf(stderr, "\raveraging %3d %%%s", percent, done == total ? "\r\033[K" : "");
    std::fflush(stderr);
  };
}

void average(const Flags& flags) {
  const std::vector<double> weights = parse_weights(flags.weights, flags.folders.size());
  std::vector<aggregate::Input> inputs;
  uint64_t num_bytes = 0;
  std::vector<fs::path> folders(flags.folders.begin(), flags.folders.end());
  const Size first = size_of(folders.front());
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<std::string> keys = content_order_keys(folders, weights);
  for (size_t i = 0; i < folders.size(); ++i) {
    inputs.push_back({folders[i], weights[i], keys[i], folders[i].string()});
    num_bytes += size_of(folders[i]).num_bytes;
  }
  const Dtype dtype = parse_output_dtype(flags.dtype, first.dtype);
  aggregate::average_weights(std::move(inputs), dtype, flags.out,
                             {.num_threads = flags.num_threads, .on_progress = progress_line()});
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  num_bytes += first.num_parameters * size_bytes(dtype);
  std::printf("averaged %zu models of %.3f M parameters in %.2f s: %.2f GB/s read and written\n",
              folders.size(), static_cast<double>(first.num_parameters) / 1e6, seconds.count(),
              static_cast<double>(num_bytes) / 1e9 / seconds.count());
  std::printf("%s  %s\n", checkpoint::read_manifest(flags.out).root_sha256().c_str(),
              log::printable(flags.out).c_str());
}

}  // namespace

void add_aggregate_command(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "aggregate", "average Hugging Face model folders, weighted; prints the result's SHA-256");
  command->add_option("--out", flags->out, "folder to create")->required();
  command->add_option("--weights", flags->weights,
                      "one number per model, such as 1,3,2.5 (default: all equal)");
  command->add_option("--dtype", flags->dtype, "of the result (default: that of the first model)")
      ->check(CLI::IsMember({"bf16", "fp16", "fp32"}));
  command->add_option("--threads", flags->num_threads, "default: all processors")
      ->check(CLI::Range(0, 4096));
  command->add_option("folders", flags->folders, "models; their order does not matter")->required();
  command->callback([flags] { average(*flags); });
}

}  // namespace xffl
