#include "update.h"

#include <torch/types.h>

#include <algorithm>
#include <system_error>

#include "elapsed.h"
#include "parameter_source.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"
#include "xffl/checkpoint/manifest.h"
#include "xffl/llama/weights.h"
#include "xffl/pack/packed_model.h"

namespace xffl::train {
namespace {

checkpoint::Dtype file_dtype(job::FloatType type) {
  if (type == job::FloatType::kBfloat16) return checkpoint::Dtype::kBF16;
  return type == job::FloatType::kFloat16 ? checkpoint::Dtype::kF16 : checkpoint::Dtype::kF32;
}

void remove_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::remove_all(folder, error);
  if (error) throw system_error("remove " + folder.string(), error.value());
}

// What the update says of each parameter in turn.
class UpdateValues {
 public:
  UpdateValues(const job::JobSpec& spec, const LoadOptions& loaded_with, const LoadedModel& model,
               MasterStream& masters)
      : is_delta_(spec.update_kind == job::UpdateKind::kDelta),
        model_(model),
        masters_(masters),
        base_(spec.base_model_path),
        given_(trained_source(spec.base_model_path, loaded_with)) {}

  at::Tensor operator()(const llama::ParameterSpec& spec) {
    const at::Tensor given = at::empty(spec.shape, at::kFloat);
    if (next_ == model_.specs.size() || model_.specs[next_].name != spec.name) {  // frozen
      if (is_delta_) return given.zero_();
      base_.read(spec, 0, given);
      return given;
    }
    const at::Tensor trained = masters_.value(next_++);
    if (!is_delta_) return trained;
    given_.read(spec, 0, given);
    return at::sub(trained, given);
  }

 private:
  bool is_delta_;
  const LoadedModel& model_;
  MasterStream& masters_;
  ParameterSource base_;
  ParameterSource given_;
  size_t next_ = 0;  // of the trained parameters
};

// The other ranks wait for this one's part in gathering, even when it cannot write.
struct FinishAtEnd {
  MasterStream& masters;
  ~FinishAtEnd() noexcept(false) { masters.finish(); }
};

void check_folder(const std::filesystem::path& folder, const std::string& sha256,
                  const std::string& what, const std::string& key) {
  const checkpoint::Manifest manifest = checkpoint::read_manifest(folder);
  if (manifest.root_sha256() != sha256) {
    throw Error(ErrorKind::kRejected, folder.string() + ": this is not the " + what +
                                          " that the job names: its root hash is " +
                                          manifest.root_sha256() + ", job.json's " + key + " is " +
                                          sha256);
  }
  checkpoint::verify_folder(folder, manifest);
}

}  // namespace

void provide_given_models(const job::JobSpec& spec) {
  const auto began = SteadyClock::now();
  if (const auto made = pack::provide_base_model(spec))
    log::info("model unpacked", {{"megabytes", static_cast<double>(made->model_bytes) * 1e-6},
                                 {"packed_megabytes", static_cast<double>(made->packed_bytes) * 1e-6},
                                 {"seconds", seconds_since(began)}});
  else
    check_folder(spec.base_model_path, spec.base_model_sha256, "model", "base_model_sha256");
  if (!spec.adapter_path.empty())
    check_folder(spec.adapter_path, spec.adapter_sha256, "adapter", "adapter_sha256");
}

MasterStream::MasterStream(const LoadedModel& model, Pipeline& pipeline, at::Device device)
    : model_(model),
      pipeline_(pipeline),
      device_(device),
      layout_(flat_parameters_of(model.specs), model.parameters->layout().num_shards()) {}

// The unit's masters; only rank 0 has those of other stages.
at::Tensor MasterStream::gather(int unit) {
  const auto holds_unit = [&](const UnitRange& units) {
    return unit >= units.first && unit < units.end;
  };
  const auto stage = static_cast<int>(
      std::find_if(model_.stages.begin(), model_.stages.end(), holds_unit) - model_.stages.begin());
  at::Tensor flat_P;
  if (stage == pipeline_.stage()) flat_P = model_.parameters->gather_masters(unit);
  if (stage == 0 || pipeline_.data().rank() != 0) return flat_P;
  if (stage == pipeline_.stage()) {
    pipeline_.stages().start_send(flat_P.to(device_), 0).wait();
  } else if (pipeline_.is_first()) {
    flat_P = at::empty({layout_.units()[static_cast<size_t>(unit)].size},
                       at::TensorOptions().dtype(at::kFloat).device(device_));
    pipeline_.stages().start_receive(flat_P, stage).wait();
  }
  return flat_P;
}

void MasterStream::gather_up_to(int unit) {
  while (unit_ < unit) flat_P_ = gather(++unit_);
}

at::Tensor MasterStream::value(size_t index) {
  const shard::Place& place = layout_.places().at(index);
  gather_up_to(place.unit);
  if (!flat_P_.is_cpu()) flat_P_ = flat_P_.to(at::kCPU);
  return flat_P_.narrow(0, place.offset, place.num_elements).view(place.shape);
}

void MasterStream::finish() { gather_up_to(model_.parameters->num_units() - 1); }

std::string write_update(const job::JobSpec& spec, const LoadOptions& loaded_with,
                         const LoadedModel& model, MasterStream& masters,
                         const std::function<void()>& before_tensor) {
  const FinishAtEnd finish{masters};
  const auto begin = SteadyClock::now();
  const std::filesystem::path target(spec.update_path);
  const std::filesystem::path temporary(spec.update_path + ".tmp");
  if (std::filesystem::exists(target)) {
    log::warning("replacing an update that was never reported", {{"path", target.string()}});
    remove_folder(target);
  }
  remove_folder(temporary);
  make_dirs(temporary);
  UpdateValues values(spec, loaded_with, model, masters);
  const std::vector<llama::ParameterSpec> specs =
      model.lora ? model.specs : llama::parameter_specs(model.config);
  const auto value = [&](size_t i) {
    before_tensor();
    return values(specs[i]);
  };
  const checkpoint::Dtype dtype = file_dtype(spec.update_dtype);
  std::vector<checkpoint::ManifestFile> files;
  if (model.lora) {
    files = llama::write_adapter(temporary, *model.lora, specs, value, dtype);
  } else {
    files = llama::write_model(temporary, model.config, specs, value, dtype);
    checkpoint::copy_tokenizer_files(spec.base_model_path, temporary);
  }
  const checkpoint::Manifest manifest = checkpoint::write_manifest(temporary, files);
  fsync_dir(temporary);
  rename_durable(temporary, target);
  log::info("update written", {{"bytes", manifest.total_bytes()}, {"seconds", seconds_since(begin)}});
  return manifest.root_sha256();
}

}  // namespace xffl::train
