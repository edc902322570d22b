#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "command_tree.h"
#include "commands.h"
#include "xffl/aggregate/aggregate.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"
#include "xffl/base/sha256.h"
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

constexpr size_t kSampleBytes = 64 << 10;
constexpr size_t kNumSamples = 32;

// The files that the mean and its config.json depend on.
std::vector<fs::path> content_files(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string extension = entry.path().extension().string();
    if (entry.is_regular_file(error) && entry.path().filename() != "manifest.json" &&
        (extension == ".safetensors" || extension == ".json" || extension == ".model"))
      files.push_back(entry.path());
  }
  if (error) throw system_error("list " + folder.string(), error.value());
  std::sort(files.begin(), files.end());
  return files;
}

void add_samples(Sha256& hash, const fs::path& path) {
  const MappedFile file(path);
  const std::span<const std::byte> bytes = file.bytes();
  hash.update(std::to_string(bytes.size()) + ":");
  if (bytes.size() <= kNumSamples * kSampleBytes) return hash.update(bytes);
  const size_t last = bytes.size() - kSampleBytes;
  for (size_t i = 0; i < kNumSamples; ++i)
    hash.update(bytes.subspan(last / (kNumSamples - 1) * i, kSampleBytes));
}

std::string key(const fs::path& folder, double weight, bool whole) {
  Sha256 hash;
  for (const fs::path& path : content_files(folder)) {
    hash.update(path.filename().string() + ":");
    if (whole)
      hash.update(sha256_file(path));
    else
      add_samples(hash, path);
  }
  hash.update(std::to_string(std::bit_cast<uint64_t>(weight)));
  return hash.hex();
}

std::map<std::string, std::vector<size_t>> groups(const std::vector<std::string>& keys) {
  std::map<std::string, std::vector<size_t>> result;
  for (size_t i = 0; i < keys.size(); ++i) result[keys[i]].push_back(i);
  return result;
}

// One unique key per (folder, weight); the sequence of inputs sorted by key does not depend on the
// order of the arguments. A key is a hash of samples of the weight files. The function reads a
// model whole only when another model has equal samples; equal models get numbers in any order.
std::vector<std::string> content_order_keys(const std::vector<fs::path>& folders,
                                            const std::vector<double>& weights) {
  std::vector<std::string> keys;
  for (size_t i = 0; i < folders.size(); ++i)
    keys.push_back(key(folders[i], weights[i], /*whole=*/false));
  for (const auto& [sampled, members] : groups(keys))
    if (members.size() > 1)
      for (const size_t i : members)
        keys[i] = sampled + "-" + key(folders[i], weights[i], /*whole=*/true);
  for (const auto& [whole, members] : groups(keys))
    for (size_t n = 1; n < members.size(); ++n) {
      std::string number = std::to_string(n);
      number.insert(0, 10 - number.size(), '0');
      keys[members[n]] = whole + "-" + number;
    }
  return keys;
}

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
      throw Error(ErrorKind::kUsage,
                  "--weights: '" + log::printable(part, 100) +
                      "' is not a number above 0; expected numbers such as 1,3,2.5");
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
  Dtype dtype = Dtype::kF32;  // the type of most of its parameters
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

Dtype parse_output_dtype(const std::string& name, Dtype default_dtype) {
  if (name == "fp32") return Dtype::kF32;
  if (name == "bf16") return Dtype::kBF16;
  if (name == "fp16") return Dtype::kF16;
  return default_dtype;
}

// Shows the progress on a terminal; empty elsewhere.
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
  command->add_option("--out", flags->out, "folder to create")->type_name(kFolderType)->required();
  command->add_option("--weights", flags->weights,
                      "one number per model, such as 1,3,2.5 (default: all equal)");
  command
      ->add_option("--dtype", flags->dtype,
                   "dtype of the result (default: that of the first model)")
      ->check(CLI::IsMember({"bf16", "fp16", "fp32"}));
  command->add_option("--threads", flags->num_threads, "default: all processors")
      ->check(CLI::Range(0, 4096));
  command->add_option("folders", flags->folders, "model folders, in any order")
      ->type_name(kFolderType)
      ->required();
  command->callback([flags] { average(*flags); });
}

}  // namespace xffl
