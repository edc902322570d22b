#include "update.h"

#include <torch/types.h>

#include <algorithm>
#include <array>
#include <exception>
#include <span>
#include <system_error>

#include "metrics.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"
#include "xffl/checkpoint/manifest.h"
#include "xffl/job/job_spec.h"
#include "xffl/llama/model_files.h"
#include "xffl/pack/packed_model.h"

namespace xffl::train {
namespace {

void remove_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::remove_all(folder, error);
  if (error) throw system_error("remove " + folder.string(), error.value());
}

// Yields the update's values of each parameter in turn.
class UpdateValues {
 public:
  UpdateValues(const job::JobSpec& spec, const LoadOptions& loaded_with, const LoadedModel& model,
               MasterStream& masters)
      : is_delta_(spec.update_kind == job::UpdateKind::kDelta),
        dtype_(to_dtype(spec.update_dtype)),
        model_(model),
        masters_(masters),
        input_(spec.base_model_path, loaded_with) {}

  llama::Values operator()(const llama::ParameterSpec& spec) {
    if (next_ == model_.specs.size() || model_.specs[next_].name != spec.name) return frozen(spec);
    if (!is_delta_) return masters_.values(next_++, dtype_);
    llama::Values trained = masters_.values(next_++);
    llama::Values delta;
    delta.prepare = trained.prepare;
    delta.read = [this, &spec, trained](int64_t begin, std::span<float> out) {
      trained.read(begin, out);
      subtract_input(spec, begin, out);
    };
    return delta;
  }

 private:
  llama::Values frozen(const llama::ParameterSpec& spec) const {
    llama::Values values;
    values.read = [this, &spec](int64_t begin, std::span<float> out) {
      if (!is_delta_) return input_.read(spec, begin, out);
      std::fill(out.begin(), out.end(), 0.0f);
    };
    return values;
  }

  void subtract_input(const llama::ParameterSpec& spec, int64_t begin, std::span<float> out) const {
    std::array<float, 1024> input;
    for (size_t first = 0; first < out.size(); first += input.size()) {
      const size_t count = std::min(input.size(), out.size() - first);
      input_.read(spec, begin + static_cast<int64_t>(first), {input.data(), count});
      for (size_t i = 0; i < count; ++i) out[first + i] -= input[i];
    }
  }

  bool is_delta_;
  at::ScalarType dtype_;
  const LoadedModel& model_;
  MasterStream& masters_;
  ParameterSource input_;
  size_t next_ = 0;  // trained parameter
};

// Finishes rank 0's stream even if rank 0 cannot write: the other ranks wait in gathering.
struct FinishAtEnd {
  MasterStream& masters;
  const int errors_at_birth = std::uncaught_exceptions();
  ~FinishAtEnd() noexcept(false) {
    const bool is_second = std::uncaught_exceptions() > errors_at_birth;
    try {
      masters.finish();
    } catch (const std::exception& error) {
      if (!is_second) throw;  // otherwise the first exception propagates
      log::warning("gathering failed: other ranks may wait until their timeout",
                   {{"problem", std::string(error.what())}});
    }
  }
};

void check_folder(const std::filesystem::path& folder, const std::string& sha256,
                  const std::string& kind, const std::string& key) {
  const checkpoint::Manifest manifest = checkpoint::read_manifest(folder);
  if (manifest.root_sha256() != sha256) {
    throw Error(ErrorKind::kRejected, folder.string() + ": this is not the " + kind +
                                          " that the job names: its root hash is " +
                                          manifest.root_sha256() + ", job.json's " + key + " is " +
                                          sha256);
  }
  checkpoint::verify_folder(folder, manifest);
}

}  // namespace

MasterStream::MasterStream(const LoadedModel& model, comm::Group& world, Pipeline& pipeline,
                           at::Device device)
    : model_(model),
      world_(world),
      pipeline_(pipeline),
      device_(device),
      layout_(flat_parameters_of(model.specs), model.parameters->layout().num_shards()) {}

// Returns the unit's masters. Rank 0 also receives the units of other stages.
shard::UnitState MasterStream::gather(int unit) {
  const auto holds_unit = [&](const UnitRange& units) {
    return unit >= units.first && unit < units.end;
  };
  const auto stage = static_cast<int>(
      std::find_if(model_.stages.begin(), model_.stages.end(), holds_unit) - model_.stages.begin());
  shard::UnitState whole;
  // An embedding, head or frozen block without trained parameters.
  if (layout_.units()[static_cast<size_t>(unit)].size == 0) return whole;
  if (stage == pipeline_.stage()) whole = model_.parameters->gather_masters(unit);
  if (stage == 0 || pipeline_.data().rank() != 0) return whole;
  if (stage == pipeline_.stage()) {
    const at::Tensor flat_P = shard::masters_of(whole, {0, whole.master_S.numel()});
    pipeline_.stages().start_send(flat_P.to(device_), 0).wait();
  } else if (pipeline_.is_first()) {
    whole.master_S = at::empty({layout_.units()[static_cast<size_t>(unit)].size},
                               at::TensorOptions().dtype(at::kFloat).device(device_));
    pipeline_.stages().start_receive(whole.master_S, stage).wait();
  }
  return whole;
}

void MasterStream::gather_up_to(int unit) {
  while (unit_ < unit) {
    whole_ = {};  // frees the unit before the next gather
    // Waits for rank 0 outside of collectives. Writing may exceed the collectives' time-out, and on
    // a GPU c10d's watchdog counts from the start of a collective.
    world_.wait_for_first();
    whole_ = gather(++unit_);
  }
}

llama::Values MasterStream::values(size_t index, at::ScalarType dtype) {
  const shard::Place& place = layout_.places().at(index);
  gather_up_to(place.unit);
  llama::Values values;
  if (whole_.master_S.is_cpu()) {
    values.read = [this, offset = place.offset](int64_t begin, std::span<float> out) {
      shard::read_masters(whole_, offset + begin, out);
    };
    return values;
  }
  if (whole_.remainder_S.defined() || whole_.master_S.scalar_type() != at::kFloat) {
    shard::UnitState wide;
    wide.master_S = shard::masters_of(whole_, {0, whole_.master_S.numel()});
    whole_ = wide;
  }
  if (!window_) window_.emplace(whole_.master_S.device());
  window_->open(whole_.master_S.narrow(0, place.offset, place.num_elements), dtype);
  values.prepare = [this](int64_t begin, int64_t count) { window_->prepare(begin, count); };
  values.read = [this](int64_t begin, std::span<float> out) { window_->read(begin, out); };
  return values;
}

void MasterStream::finish() { gather_up_to(model_.parameters->num_units() - 1); }

void prepare_input_models(const job::JobSpec& spec) try {
  const auto began = SteadyClock::now();
  if (const auto made = pack::provide_base_model(spec))
    log::info("model unpacked",
              {{"megabytes", static_cast<double>(made->model_bytes) * 1e-6},
               {"packed_megabytes", static_cast<double>(made->packed_bytes) * 1e-6},
               {"seconds", seconds_since(began)}});
  else
    check_folder(spec.base_model_path, spec.base_model_sha256, "model", "base_model_sha256");
  if (!spec.adapter_path.empty())
    check_folder(spec.adapter_path, spec.adapter_sha256, "adapter", "adapter_sha256");
} catch (const Error& error) {
  const bool has_bad_sector = dynamic_cast<const UnreadableFile*>(&error) != nullptr;
  if (has_bad_sector || error.kind() == ErrorKind::kRejected ||
      error.kind() == ErrorKind::kCorrupt || error.kind() == ErrorKind::kNotFound)
    job::report_model_failure(spec.model_failure_path(), error.what());
  throw;
}

std::string write_update(const job::JobSpec& spec, const LoadOptions& loaded_with,
                         const LoadedModel& model, MasterStream& masters,
                         const std::function<void()>& before_tensor) {
  const FinishAtEnd finish{masters};
  const auto begin = SteadyClock::now();
  const std::filesystem::path target(spec.update_path);
  const std::filesystem::path temporary(spec.update_path + ".tmp");
  if (std::filesystem::exists(target)) {
    log::warning("unreported update replaced", {{"path", target.string()}});
    remove_folder(target);
  }
  remove_folder(temporary);
  make_dirs(temporary);
  UpdateValues values(spec, loaded_with, model, masters);
  const std::vector<llama::ParameterSpec> specs =
      model.lora ? llama::adapter_specs(model.config, *model.lora)
                 : llama::parameter_specs(model.config);
  const auto value = [&](size_t i) {
    before_tensor();
    return values(specs[i]);
  };
  const checkpoint::Dtype dtype = to_file_dtype(spec.update_dtype);
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
  log::info("update written",
            {{"bytes", manifest.total_bytes()}, {"seconds", seconds_since(begin)}});
  return manifest.root_sha256();
}

}  // namespace xffl::train
