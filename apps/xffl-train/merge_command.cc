#include <torch/types.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "setup.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/folder_path.h"
#include "xffl/base/log.h"
#include "xffl/checkpoint/lora.h"
#include "xffl/checkpoint/manifest.h"
#include "xffl/llama/model_files.h"

namespace xffl::train_app {
namespace {

namespace fs = std::filesystem;

// A model whose weights include an adapter: each weight that the adapter targets becomes W + (alpha
// / rank) B A, computed in float32; magnitudes then scale each row to its length. The adapter's own
// embedding and head replace the model's. Holds one weight in memory at a time.
class MergedModel {
 public:
  MergedModel(const fs::path& model, const fs::path& adapter)
      : config_(checkpoint::read_llama_config(model)),
        lora_(checkpoint::read_lora_config(adapter)),
        specs_(llama::parameter_specs(config_)),
        adapter_specs_(llama::adapter_specs(config_, lora_)),
        model_(model),
        adapter_(adapter) {
    llama::check_parameters(model_, specs_);
    checkpoint::check_lora_tensors(adapter_, config_, lora_);
  }

  const checkpoint::LlamaConfig& config() const { return config_; }
  const std::vector<llama::ParameterSpec>& specs() const { return specs_; }
  checkpoint::Dtype dtype() const { return model_.spec(specs_.front().name).dtype; }

  at::Tensor value(size_t index) const {
    const llama::ParameterSpec& spec = specs_[index];
    const auto whole = find("base_model.model." + spec.name);
    if (whole != nullptr) return read(adapter_, *whole);
    const at::Tensor w_ED = read(model_, spec);
    std::string layer = "base_model.model." + spec.name;
    layer.resize(layer.size() - std::min(layer.size(), std::string(".weight").size()));
    const auto a = find(layer + ".lora_A.weight"), b = find(layer + ".lora_B.weight");
    if (a == nullptr || b == nullptr) return w_ED;
    at::Tensor merged_ED =
        at::addmm(w_ED, read(adapter_, *b), read(adapter_, *a), 1, lora_.scaling());
    const auto magnitude = find(layer + ".lora_magnitude_vector");
    if (magnitude == nullptr) return merged_ED;
    const at::Tensor lengths_E = at::linalg_vector_norm(merged_ED, 2, {1});
    // A row of zeros has no direction, and stays.
    const at::Tensor factors_E =
        read(adapter_, *magnitude).div_(lengths_E).masked_fill_(lengths_E == 0, 0);
    return merged_ED.mul_(factors_E.unsqueeze(1));
  }

 private:
  const llama::ParameterSpec* find(const std::string& name) const {
    const auto found = std::find_if(adapter_specs_.begin(), adapter_specs_.end(),
                                    [&](const auto& spec) { return spec.name == name; });
    return found == adapter_specs_.end() ? nullptr : &*found;
  }
  static at::Tensor read(const checkpoint::ModelFolder& files, const llama::ParameterSpec& spec) {
    const at::Tensor value = at::empty(spec.shape, at::kFloat);
    llama::read_parameter(files, spec, 0, value);
    return value;
  }

  checkpoint::LlamaConfig config_;
  checkpoint::LoraConfig lora_;
  std::vector<llama::ParameterSpec> specs_, adapter_specs_;
  checkpoint::ModelFolder model_, adapter_;
};

}  // namespace

void merge_command(const MergeOptions& options) {
  const fs::path model(options.model), out = folder_path(options.output);
  std::optional<checkpoint::Dtype> dtype;
  if (!options.dtype.empty())
    dtype = train::to_file_dtype(parse_float_type("--dtype", options.dtype));
  if (fs::exists(out))
    throw Error(ErrorKind::kUsage, out.string() + " already exists: choose a new folder");
  const MergedModel merged(model, options.adapter);
  const fs::path temporary = out.string() + ".tmp";
  fs::remove_all(temporary);
  const auto files = llama::write_model(
      temporary, merged.config(), merged.specs(), [&](size_t i) { return merged.value(i); },
      dtype.value_or(merged.dtype()));
  checkpoint::copy_tokenizer_files(model, temporary);
  const std::string hash = checkpoint::write_manifest(temporary, files).root_sha256();
  fsync_dir(temporary);
  rename_durable(temporary, out);
  log::info("adapter merged", {{"path", options.output}, {"sha256", hash}});
}

}  // namespace xffl::train_app
