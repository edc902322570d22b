#include "xffl/job/job_spec.h"

#include <set>

#include "fields.h"
#include "training_fields.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"

namespace xffl::job {
namespace {

constexpr size_t kMaxPathBytes = 4000;
constexpr size_t kMaxTrainPaths = 100'000;

std::string read_path(JsonObject& object, std::string_view key) {
  std::string path = read_text(object, key, kMaxPathBytes);
  if (path.empty()) object.fail(key, "should be a path, found an empty string");
  return path;
}

// An empty string: none.
std::string read_path_or_none(JsonObject& object, std::string_view key) {
  return read_text(object, key, kMaxPathBytes);
}

std::vector<std::string> read_train_paths(JsonObject& object) {
  std::vector<std::string> paths;
  for (const Json& path : read_array(object, "train_paths", kMaxTrainPaths)) {
    const Json item{{"path", path}};
    JsonObject view(item, item_where(object, "train_paths", paths.size()));
    paths.push_back(read_path(view, "path"));
  }
  return paths;
}

std::vector<ValidationSet> read_validation(JsonObject& object) {
  std::vector<ValidationSet> sets;
  std::set<std::string> names;
  for (const Json& item : read_array(object, "validation", kMaxValidationSets)) {
    JsonObject view(item, item_where(object, "validation", sets.size()));
    ValidationSet set;
    set.name = read_set_name(view, "name");
    set.path = read_path(view, "path");
    view.refuse_other_keys();
    if (!names.insert(set.name).second) view.fail("name", "'" + set.name + "' appears twice");
    sets.push_back(std::move(set));
  }
  return sets;
}

/// What must be empty because `other` is.
std::string read_nothing(JsonObject& object, std::string_view key, std::string_view other) {
  const std::string text = read_text(object, key, 100);
  if (!text.empty())
    object.fail(key, "should be empty as " + std::string(other) + " is, found '" + text + "'");
  return text;
}

std::optional<PackedModel> read_packed(JsonObject& object) {
  if (object.at("base_model_packed").is_null()) return std::nullopt;
  JsonObject view = object.object("base_model_packed");
  PackedModel packed;
  packed.path = read_path(view, "path");
  packed.sha256 = read_sha256(view, "sha256");
  packed.reference_path = read_path(view, "reference_path");
  packed.reference_sha256 = read_sha256(view, "reference_sha256");
  packed.failure_path = read_path(view, "failure_path");
  view.refuse_other_keys();
  return packed;
}

Json write_packed(const std::optional<PackedModel>& packed) {
  if (!packed) return nullptr;
  return {{"path", packed->path},
          {"sha256", packed->sha256},
          {"reference_path", packed->reference_path},
          {"reference_sha256", packed->reference_sha256},
          {"failure_path", packed->failure_path}};
}

void make_absolute(const std::filesystem::path& folder, std::string& path) {
  if (!path.empty()) path = (folder / path).string();  // an absolute `path` replaces the folder
}

}  // namespace

std::string JobKey::job_name() const {
  std::string digits = std::to_string(round);
  digits.insert(0, digits.size() < 4 ? 4 - digits.size() : 0, '0');
  return "xffl-" + project + "-" + run + "-r" + digits + "-" + facility + "-a" +
         std::to_string(attempt);
}

JobSpec parse_job_spec(std::string_view json, std::string_view origin) {
  const Json document = parse_json(json, origin, {.max_bytes = kMaxJobFileBytes, .max_depth = 6});
  JsonObject object(document, std::string(origin));
  read_version(object, kJobVersion, kJobVersion);
  JobSpec spec;
  spec.key = read_key(object.object("key"));
  spec.base_model_path = read_path(object, "base_model_path");
  spec.base_model_sha256 = read_sha256(object, "base_model_sha256");
  spec.base_model_packed = read_packed(object);
  spec.train_paths = read_train_paths(object);
  spec.validation = read_validation(object);
  spec.adapter_path = read_path_or_none(object, "adapter_path");
  spec.adapter_sha256 = spec.adapter_path.empty()
                            ? read_nothing(object, "adapter_sha256", "adapter_path")
                            : read_sha256(object, "adapter_sha256");
  spec.optimizer_path = read_path_or_none(object, "optimizer_path");
  spec.update_path = read_path(object, "update_path");
  spec.report_path = read_path(object, "report_path");
  spec.metrics_path = read_path(object, "metrics_path");
  spec.state_path = read_path(object, "state_path");
  spec.on_stop = read_enum(object, "on_stop", parse_on_stop, "\"update\" or \"checkpoint\"");
  spec.update_kind =
      read_enum(object, "update_kind", parse_update_kind, "\"weights\" or \"delta\"");
  spec.update_dtype = read_float_type(object, "update_dtype");
  spec.training = read_training(object.object("training"));
  object.refuse_other_keys();
  if (spec.training.steps > 0 && spec.train_paths.empty()) {
    object.fail("train_paths", "should name at least one token shard when training.steps is " +
                                   std::to_string(spec.training.steps));
  }
  if (spec.training.keep_optimizer == spec.optimizer_path.empty()) {
    object.fail("optimizer_path", spec.training.keep_optimizer
                                      ? "should be a path as training.keep_optimizer is true"
                                      : "should be empty as training.keep_optimizer is false");
  }
  return spec;
}

JobSpec read_job_spec(const std::filesystem::path& path) {
  JobSpec spec = parse_job_spec(read_file(path, kMaxJobFileBytes), path.string());
  const std::filesystem::path folder = std::filesystem::absolute(path).parent_path();
  for (std::string* file :
       {&spec.base_model_path, &spec.adapter_path, &spec.optimizer_path, &spec.update_path,
        &spec.report_path, &spec.metrics_path, &spec.state_path}) {
    make_absolute(folder, *file);
  }
  if (auto& packed = spec.base_model_packed) {
    for (std::string* file : {&packed->path, &packed->reference_path, &packed->failure_path})
      make_absolute(folder, *file);
  }
  for (std::string& shard : spec.train_paths) make_absolute(folder, shard);
  for (ValidationSet& set : spec.validation) make_absolute(folder, set.path);
  return spec;
}

std::string format_job_spec(const JobSpec& spec) {
  Json validation = Json::array();
  for (const ValidationSet& set : spec.validation) {
    validation.push_back(Json{{"name", set.name}, {"path", set.path}});
  }
  const Json document{{"version", kJobVersion},
                      {"key", write_key(spec.key)},
                      {"base_model_path", spec.base_model_path},
                      {"base_model_sha256", spec.base_model_sha256},
                      {"base_model_packed", write_packed(spec.base_model_packed)},
                      {"train_paths", spec.train_paths},
                      {"validation", std::move(validation)},
                      {"adapter_path", spec.adapter_path},
                      {"adapter_sha256", spec.adapter_sha256},
                      {"optimizer_path", spec.optimizer_path},
                      {"update_path", spec.update_path},
                      {"report_path", spec.report_path},
                      {"metrics_path", spec.metrics_path},
                      {"state_path", spec.state_path},
                      {"on_stop", to_string(spec.on_stop)},
                      {"update_kind", to_string(spec.update_kind)},
                      {"update_dtype", to_string(spec.update_dtype)},
                      {"training", write_training(spec.training)}};
  std::string text = dump_document(document);
  parse_job_spec(text, "job.json");
  return text;
}

}  // namespace xffl::job
