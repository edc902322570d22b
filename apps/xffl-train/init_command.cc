#include <ATen/Parallel.h>
#include <torch/types.h>

#include <filesystem>

#include "setup.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"
#include "xffl/checkpoint/manifest.h"
#include "xffl/checkpoint/model_folder.h"
#include "xffl/llama/model_files.h"
#include "xffl/train/device.h"

namespace xffl::train_app {
namespace {

constexpr uint64_t kMaxConfigBytes = 1 << 20;

void copy_tokenizer(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (std::filesystem::is_directory(from)) {
    checkpoint::copy_tokenizer_files(from, to);
    return;
  }
  const bool sentencepiece = from.extension() == ".model";
  write_file_atomic(to / (sentencepiece ? "tokenizer.model" : from.filename()),
                    read_file(from, 1ull << 30), 0644);
}

}  // namespace

void init_command(const CommonOptions& common, const InitOptions& options) {
  const checkpoint::Dtype dtype = train::to_file_dtype(parse_float_type("--dtype", options.dtype));
  const std::filesystem::path target(options.output);
  if (std::filesystem::exists(target) && !std::filesystem::is_empty(target)) {
    throw Error(ErrorKind::kUsage,
                options.output + " already exists and is not empty: choose a new folder");
  }
  if (common.threads > 0) at::set_num_threads(common.threads);
  const std::filesystem::path path(options.config);
  const checkpoint::LlamaConfig config =
      std::filesystem::is_directory(path)
          ? checkpoint::read_llama_config(path)
          : checkpoint::parse_llama_config(read_file(path, kMaxConfigBytes), options.config);
  make_dirs(target);
  const std::vector<llama::ParameterSpec> specs = llama::parameter_specs(config);
  const auto files = llama::write_model(
      target, config, specs,
      [&](size_t i) {
        const at::Tensor value = at::empty(specs[i].shape, at::kFloat);
        llama::initialize_parameter(specs[i], config.initializer_range, options.seed, value);
        return value;
      },
      dtype);
  if (!options.tokenizer.empty()) copy_tokenizer(options.tokenizer, target);
  const std::string hash = checkpoint::write_manifest(target, files).root_sha256();
  log::info("model written",
            {{"path", options.output}, {"parameters", config.num_parameters()}, {"sha256", hash}});
}

}  // namespace xffl::train_app
