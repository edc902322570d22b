#include "update.h"

#include <torch/types.h>

#include <system_error>

#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"
#include "xffl/checkpoint/manifest.h"
#include "xffl/llama/weights.h"

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

// The other ranks wait for this one's part in gathering, even when it cannot write.
struct FinishAtEnd {
  MasterStream& masters;
  ~FinishAtEnd() noexcept(false) { masters.finish(); }
};

}  // namespace

void check_base_model(const std::filesystem::path& folder, const std::string& sha256) {
  const checkpoint::Manifest manifest = checkpoint::read_manifest(folder);
  if (manifest.root_sha256() != sha256) {
    throw Error(ErrorKind::kRejected,
                folder.string() + ": this is not the model that the job names: its root hash is " +
                    manifest.root_sha256() + ", job.json's base_model_sha256 is " + sha256);
  }
  checkpoint::verify_folder(folder, manifest);
}

void MasterStream::gather_up_to(int unit) {
  while (unit_ < unit) flat_P_ = model_.parameters->gather_masters(++unit_).to(at::kCPU);
}

at::Tensor MasterStream::value(size_t index) {
  gather_up_to(model_.specs.at(index).unit);
  return model_.parameters->view(flat_P_, index);
}

void MasterStream::finish() { gather_up_to(model_.parameters->num_units() - 1); }

std::string write_update(const job::JobSpec& spec, const LoadedModel& model, MasterStream& masters,
                         const std::function<void()>& before_tensor) {
  const FinishAtEnd finish{masters};
  const std::filesystem::path target(spec.update_path);
  const std::filesystem::path temporary(spec.update_path + ".tmp");
  if (std::filesystem::exists(target)) {
    log::warning("replacing an update that was never reported", {{"path", target.string()}});
    remove_folder(target);
  }
  remove_folder(temporary);
  make_dirs(temporary);
  const checkpoint::ModelFolder base(spec.base_model_path);
  const auto value = [&](size_t i) {
    before_tensor();
    const at::Tensor trained = masters.value(i);
    if (spec.update_kind == job::UpdateKind::kWeights) return trained;
    const at::Tensor given = at::empty(trained.sizes(), at::kFloat);
    llama::read_parameter(base, model.specs[i], 0, given);
    return at::sub(trained, given);
  };
  llama::write_model(temporary, model.config, model.specs, value, file_dtype(spec.update_dtype));
  checkpoint::copy_tokenizer_files(spec.base_model_path, temporary);
  const checkpoint::Manifest manifest = checkpoint::write_manifest(temporary);
  fsync_dir(temporary);
  rename_durable(temporary, target);
  return manifest.root_sha256();
}

}  // namespace xffl::train
