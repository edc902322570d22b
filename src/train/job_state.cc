#include "job_state.h"

#include <torch/types.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>

#include "agree.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/base/log.h"
#include "xffl/checkpoint/safetensors.h"

namespace xffl::train {
namespace {

namespace fs = std::filesystem;

constexpr int kVersion = 1;
constexpr uint64_t kMaxStateBytes = 16 << 20;
constexpr const char* kPrefix = "step-";

std::string numbered(const char* format, int64_t number) {
  char text[64];
  std::snprintf(text, sizeof text, format, static_cast<long long>(number));
  return text;
}

std::string part_name(int part, int num_parts) {
  return numbered("part-%04lld", part + 1) + numbered("-of-%04lld.safetensors", num_parts);
}

std::string buffer_name(size_t unit, const char* what) {
  return numbered("unit%04lld", static_cast<int64_t>(unit)) + "." + what;
}

// What decides about the weights. Sharding and its like may change between two attempts.
std::string fingerprint(job::JobSpec spec) {
  const job::TrainingSpec defaults;
  spec.key.attempt = 1;
  spec.key.nonce = std::string(32, '0');
  spec.adapter_path = spec.adapter_sha256.empty() ? "" : "-";
  spec.optimizer_path = spec.training.keep_optimizer ? "-" : "";
  spec.update_path = spec.report_path = spec.metrics_path = spec.state_path = "-";
  spec.base_model_path = "-";  // its hash tells
  spec.on_stop = job::OnStop::kUpdate;
  job::TrainingSpec& training = spec.training;
  training.sharding = defaults.sharding;
  training.shard_group_size = defaults.shard_group_size;
  training.recompute = defaults.recompute;
  training.offload = defaults.offload;
  training.checkpoint_interval = defaults.checkpoint_interval;
  training.keep_checkpoints = defaults.keep_checkpoints;
  training.deterministic = defaults.deterministic;
  training.pipeline = defaults.pipeline;
  return job::format_job_spec(spec);
}

// The step of a folder's name, or -1.
int64_t step_of(const fs::path& folder) {
  const std::string name = folder.filename().string();
  const std::string digits = name.substr(std::min(name.size(), std::strlen(kPrefix)));
  if (!name.starts_with(kPrefix) || digits.empty() || digits.size() > 12 ||
      digits.find_first_not_of("0123456789") != std::string::npos)
    return -1;
  return std::stoll(digits);
}

std::vector<int64_t> steps_in(const fs::path& folder) {
  std::vector<int64_t> steps;
  std::error_code none;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, none))
    if (const int64_t step = step_of(entry.path()); step >= 0) steps.push_back(step);
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

Json read_json(const fs::path& folder) {
  const fs::path path = folder / "state.json";
  return parse_json(read_file(path, kMaxStateBytes), path.string(),
                    {.max_bytes = kMaxStateBytes, .max_depth = 6});
}

// Why a checkpoint cannot be used; empty when it can.
std::string problem_of(const fs::path& folder, const std::string& expected) {
  try {
    const Json state = read_json(folder);
    if (state.at("version") != kVersion) return "it has another format version";
    if (state.at("job") != expected) return "it belongs to another job";
    for (const auto& [name, size] : state.at("files").items())
      if (fs::file_size(folder / name) != size.get<uint64_t>()) return name + " is not whole";
    return "";
  } catch (const std::exception& error) {  // the file system's and JSON's too
    return error.what();
  }
}

std::span<const std::byte> bytes_of(const at::Tensor& host) {
  return {static_cast<const std::byte*>(host.const_data_ptr()), host.nbytes()};
}

// Copies the elements that a stored part and `held` have in common.
void copy_overlap(std::span<const std::byte> stored, int64_t stored_begin, const shard::Range& held,
                  at::Tensor out_S) {
  const int64_t stored_end = stored_begin + static_cast<int64_t>(stored.size() / sizeof(float));
  const int64_t begin = std::max(stored_begin, held.begin);
  const int64_t end = std::min(stored_end, held.begin + held.count);
  if (begin >= end) return;
  const at::Tensor host = at::empty({end - begin}, at::kFloat);
  std::memcpy(host.mutable_data_ptr(),
              stored.data() + static_cast<size_t>(begin - stored_begin) * sizeof(float),
              static_cast<size_t>(end - begin) * sizeof(float));
  out_S.narrow(0, begin - held.begin, end - begin).copy_(host);
}

}  // namespace

fs::path JobStateStore::folder(int64_t steps) const {
  return fs::path(spec_.state_path) / (kPrefix + numbered("%08lld", steps));
}

void JobStateStore::write_part(const fs::path& target) const {
  const shard::FlatParameters& parameters = *model_.parameters;
  if (parameters.is_copy()) return;
  shard::Adamw& optimizer = trainer_.optimizer();
  std::vector<checkpoint::TensorSpec> specs;
  std::vector<at::Tensor> buffers;
  for (size_t unit = 0; unit < parameters.states().size(); ++unit) {
    const at::Tensor& master_S = parameters.states()[unit].master_S;
    for (const auto& [what, buffer] :
         {std::pair{"master", master_S}, std::pair{"first", optimizer.first_moments()[unit]},
          std::pair{"second", optimizer.second_moments()[unit]}}) {
      specs.push_back({buffer_name(unit, what), checkpoint::Dtype::kF32, {buffer.numel()}});
      buffers.push_back(buffer);
    }
  }
  checkpoint::SafetensorsWriter writer(
      target / part_name(parameters.state_part(), parameters.num_state_parts()), specs);
  for (const at::Tensor& buffer : buffers) writer.write(bytes_of(buffer.to(at::kCPU)));
  writer.finish();
}

void JobStateStore::write_state(const fs::path& target, const JobState& state) const {
  Json files = Json::object();
  const int num_parts = model_.parameters->num_state_parts();
  for (int part = 0; part < num_parts; ++part) {
    const std::string name = part_name(part, num_parts);
    files[name] = fs::file_size(target / name);
  }
  const Json document{{"version", kVersion},
                      {"job", fingerprint(spec_)},
                      {"num_parts", num_parts},
                      {"files", std::move(files)},
                      {"optimizer_steps", trainer_.optimizer().num_steps()},
                      {"loss_scale", trainer_.loss_scale().state()},
                      {"nll_before", state.nll_before},
                      {"report", job::format_job_report(state.report)}};
  write_file_atomic(target / "state.json", document.dump(1) + "\n");
}

void JobStateStore::remove_old() const {
  std::error_code none;
  const std::vector<int64_t> steps = steps_in(spec_.state_path);
  for (size_t i = static_cast<size_t>(spec_.training.keep_checkpoints); i < steps.size(); ++i)
    fs::remove_all(folder(steps[i]), none);
}

void JobStateStore::save(const JobState& state) {
  const fs::path target = folder(state.report.steps);
  // Of an earlier attempt that may still be writing, somewhere, nothing is touched.
  const fs::path temporary = target.string() + ".a" + std::to_string(spec_.key.attempt) + ".tmp";
  on_first_rank(group_, device_, [&] {
    std::error_code none;
    fs::remove_all(temporary, none);
    make_dirs(temporary);
  });
  on_all_ranks(group_, device_, [&] { write_part(temporary); });
  on_first_rank(group_, device_, [&] {
    write_state(temporary, state);
    fsync_dir(temporary);
    if (fs::exists(target)) {  // the same steps, done before: the same bits
      fs::remove_all(temporary);
    } else {
      rename_durable(temporary, target);
    }
    remove_old();
  });
}

void JobStateStore::clear() const {
  std::error_code none;
  fs::remove_all(spec_.state_path, none);
}

// Steps of the newest checkpoint that can be used, or -1.
int64_t JobStateStore::newest() const {
  const std::string expected = fingerprint(spec_);
  for (const int64_t steps : steps_in(spec_.state_path)) {
    const std::string problem = problem_of(folder(steps), expected);
    if (problem.empty()) return steps;
    log::warning("a checkpoint is passed over",
                 {{"path", folder(steps).string()}, {"problem", problem}});
  }
  return -1;
}

void JobStateStore::read_parts(const fs::path& source, int num_parts) {
  shard::FlatParameters& parameters = *model_.parameters;
  shard::Adamw& optimizer = trainer_.optimizer();
  for (int part = 0; part < num_parts; ++part) {
    const checkpoint::SafetensorsFile file(source / part_name(part, num_parts));
    for (size_t unit = 0; unit < parameters.states().size(); ++unit) {
      const shard::Range held = parameters.state_range(static_cast<int>(unit));
      for (const auto& [what, buffer] : {std::pair{"master", parameters.states()[unit].master_S},
                                         std::pair{"first", optimizer.first_moments()[unit]},
                                         std::pair{"second", optimizer.second_moments()[unit]}}) {
        const std::span<const std::byte> stored = file.data(buffer_name(unit, what));
        const auto count = static_cast<int64_t>(stored.size() / sizeof(float));
        copy_overlap(stored, part * count, held, buffer);
      }
    }
  }
  parameters.refresh_compute();
}

void JobStateStore::read(const fs::path& source, JobState& state) {
  const Json json = read_json(source);
  read_parts(source, json.at("num_parts").get<int>());
  trainer_.optimizer().set_num_steps(json.at("optimizer_steps").get<int64_t>());
  trainer_.loss_scale().set_state(json.at("loss_scale").get<std::array<double, 2>>());
  state.nll_before = json.at("nll_before").get<std::vector<double>>();
  state.report = job::parse_job_report(json.at("report").get<std::string>(), source.string());
}

bool JobStateStore::load(JobState& state) {
  int64_t steps = -1;
  on_first_rank(group_, device_, [&] { steps = newest(); });
  steps = max_over_ranks(group_, device_, steps);
  if (steps < 0) return false;
  on_all_ranks(group_, device_, [&] { read(folder(steps), state); });
  return true;
}

}  // namespace xffl::train
