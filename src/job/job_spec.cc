#include "xffl/job/job_spec.h"

#include <cstdio>

#include "json_fields.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"

namespace xffl::job {
namespace {

std::string validate_path(std::string_view text) {
  return text.empty() ? "should be a path, found an empty string" : "";
}

const FieldTable& packed_fields() {
  static const FieldTable fields({
      field("path", &PackedModel::path, "", {.validate = validate_path}),
      field("sha256", &PackedModel::sha256, "", {.validate = validate_sha256}),
      field("reference_path", &PackedModel::reference_path, "", {.validate = validate_path}),
      field("reference_sha256", &PackedModel::reference_sha256, "", {.validate = validate_sha256}),
      field("failure_path", &PackedModel::failure_path, "", {.validate = validate_path}),
  });
  return fields;
}

const FieldTable& validation_set_fields() {
  static const FieldTable fields({
      field("name", &ValidationSet::name, "", {.validate = validate_set_name}),
      field("path", &ValidationSet::path, "", {.validate = validate_path}),
  });
  return fields;
}

const FieldTable& job_spec_fields() {
  using S = JobSpec;
  static const FieldTable fields({
      field("key", &S::key, "", {.table = &job_key_fields()}),
      field("base_model_path", &S::base_model_path, "", {.validate = validate_path}),
      field("base_model_sha256", &S::base_model_sha256, "", {.validate = validate_sha256}),
      field("base_model_packed", &S::base_model_packed, "",
            {.table = &packed_fields(), .nullable = true}),
      field("train_paths", &S::train_paths, "", {.validate = validate_path}),
      field("validation", &S::validation, "", {.table = &validation_set_fields()}),
      field("adapter_path", &S::adapter_path),
      field("adapter_sha256", &S::adapter_sha256, "", {.validate = validate_sha256_or_empty}),
      field("optimizer_path", &S::optimizer_path),
      field("update_path", &S::update_path, "", {.validate = validate_path}),
      field("report_path", &S::report_path, "", {.validate = validate_path}),
      field("metrics_path", &S::metrics_path, "", {.validate = validate_path}),
      field("state_path", &S::state_path, "", {.validate = validate_path}),
      field("on_stop", &S::on_stop),
      field("update_kind", &S::update_kind),
      field("update_dtype", &S::update_dtype),
      field("training", &S::training, "", {.table = &training_fields()}),
  });
  return fields;
}

// Checks the fields that depend on each other.
void check_spec(const JobSpec& spec, const JsonObject& object) {
  const Lora& lora = spec.training.lora;
  if (lora.rank > 0 && lora.target_modules.empty())
    object.fail("training.lora.target_modules",
                "should name at least one module when rank is not 0");
  if (spec.adapter_path.empty() && !spec.adapter_sha256.empty())
    object.fail("adapter_sha256",
                "should be empty as adapter_path is, found '" + spec.adapter_sha256 + "'");
  if (!spec.adapter_path.empty() && spec.adapter_sha256.empty())
    object.fail("adapter_sha256", validate_sha256(""));
  if (spec.training.steps > 0 && spec.train_paths.empty())
    object.fail("train_paths", "should name at least one token shard when training.steps is " +
                                   std::to_string(spec.training.steps));
  if (spec.training.keep_optimizer == spec.optimizer_path.empty())
    object.fail("optimizer_path", spec.training.keep_optimizer
                                      ? "should be a path as training.keep_optimizer is true"
                                      : "should be empty as training.keep_optimizer is false");
}

void make_absolute(const std::filesystem::path& folder, std::string& path) {
  if (!path.empty()) path = (folder / path).string();  // an absolute `path` replaces the folder
}

// "r0002".
std::string round_name(int round) {
  char name[16];
  std::snprintf(name, sizeof name, "r%04d", round);
  return name;
}

}  // namespace

std::string JobKey::name() const {
  return "xffl-" + project + "-" + run + "-" + round_name(round) + "-" + facility + "-a" +
         std::to_string(attempt);
}

std::string JobKey::optimizer_state_name() const { return round_name(round) + "-" + nonce; }

std::filesystem::path JobSpec::model_failure_path() const {
  return std::filesystem::path(report_path).parent_path() / "model.failure";
}

void report_model_failure(const std::filesystem::path& path, const std::string& reason) {
  try {
    make_dirs(path.parent_path());
    write_file_atomic(path, reason + "\n");
  } catch (const Error& error) {
    log::warning("the model's failure cannot be reported to the coordinator",
                 {{"problem", error.what()}});
  }
}

JobSpec parse_job_spec(std::string_view json, std::string_view origin) {
  const Json document = parse_json(json, origin, {.max_bytes = kMaxJobFileBytes, .max_depth = 6});
  JsonObject object(document, std::string(origin));
  const int version = object.version(kOldestJobVersion, kJobVersion);
  JobSpec spec;
  read_fields(object, job_spec_fields(), &spec, version);
  check_spec(spec, object);
  return spec;
}

JobSpec read_job_spec(const std::filesystem::path& path) {
  JobSpec spec = parse_job_spec(read_file(path, kMaxJobFileBytes), path.string());
  const std::filesystem::path folder = std::filesystem::absolute(path).parent_path();
  for (std::string* file :
       {&spec.base_model_path, &spec.adapter_path, &spec.optimizer_path, &spec.update_path,
        &spec.report_path, &spec.metrics_path, &spec.state_path})
    make_absolute(folder, *file);
  if (auto& packed = spec.base_model_packed) {
    for (std::string* file : {&packed->path, &packed->reference_path, &packed->failure_path})
      make_absolute(folder, *file);
  }
  for (std::string& shard : spec.train_paths) make_absolute(folder, shard);
  for (ValidationSet& set : spec.validation) make_absolute(folder, set.path);
  return spec;
}

std::string format_job_spec(const JobSpec& spec) {
  Json document{{"version", needed_version(job_spec_fields(), &spec, kOldestJobVersion)}};
  write_fields(document, job_spec_fields(), &spec);
  std::string text = dump_document(document);
  parse_job_spec(text, "job.json");
  return text;
}

}  // namespace xffl::job
