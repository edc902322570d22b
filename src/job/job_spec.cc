#include "xffl/job/job_spec.h"

#include <set>

#include "fields.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"

namespace xffl::job {
namespace {

constexpr size_t kMaxPathBytes = 4000;
constexpr size_t kMaxTrainPaths = 100'000;
constexpr int64_t kMaxSteps = 1'000'000'000;
constexpr int64_t kMaxBatch = 1 << 24;
constexpr int64_t kMaxRanks = 1 << 20;

/// The value of one of the enumerations, by its name in the file.
template <class Parse>
auto read_enum(JsonObject& object, std::string_view key, Parse parse, std::string_view names) {
  const std::string text = read_text(object, key, 100);
  const auto value = parse(text);
  if (!value) object.fail(key, "should be " + std::string(names) + ", found '" + text + "'");
  return *value;
}

FloatType read_float_type(JsonObject& object, std::string_view key) {
  return read_enum(object, key, parse_float_type, "fp32, bf16 or fp16");
}

std::string read_path(JsonObject& object, std::string_view key) {
  std::string path = read_text(object, key, kMaxPathBytes);
  if (path.empty()) object.fail(key, "should be a path, found an empty string");
  return path;
}

uint64_t read_seed(JsonObject& object) {
  const Json& seed = object.at("seed");
  if (!seed.is_number_unsigned()) {
    object.fail("seed", "should be an integer from 0 to 2^64 - 1");
  }
  return seed.get<uint64_t>();
}

Schedule read_schedule(JsonObject object) {
  Schedule schedule;
  schedule.kind =
      read_enum(object, "kind", parse_schedule_kind, "\"constant\", \"linear\" or \"cosine\"");
  schedule.warmup_steps = read_count(object, "warmup_steps", 0, kMaxSteps);
  schedule.total_steps = read_count(object, "total_steps", 0, kMaxSteps);
  schedule.min_ratio = read_number(object, "min_ratio", 0, 1);
  object.refuse_other_keys();
  return schedule;
}

Json write_schedule(const Schedule& schedule) {
  return Json{{"kind", to_string(schedule.kind)},
              {"warmup_steps", schedule.warmup_steps},
              {"total_steps", schedule.total_steps},
              {"min_ratio", schedule.min_ratio}};
}

TrainingSpec read_training(JsonObject object) {
  TrainingSpec training;
  training.steps = read_count(object, "steps", 0, kMaxSteps);
  training.first_step = read_count(object, "first_step", 0, kMaxSteps);
  training.batch_size = read_count(object, "batch_size", 1, kMaxBatch);
  training.micro_batch_size = read_count(object, "micro_batch_size", 1, kMaxBatch);
  training.learning_rate = read_number(object, "learning_rate", 0, 1e3);
  training.schedule = read_schedule(object.object("schedule"));
  training.weight_decay = read_number(object, "weight_decay", 0, 1e3);
  training.beta1 = read_number(object, "beta1", 0, 1);
  training.beta2 = read_number(object, "beta2", 0, 1);
  for (const char* beta : {"beta1", "beta2"}) {
    if (object.number(beta) == 1) object.fail(beta, "should be below 1, found 1");
  }
  training.epsilon = read_number(object, "epsilon", 0, 1);
  training.max_grad_norm = read_number(object, "max_grad_norm", 0, 1e12);
  training.seed = read_seed(object);
  training.precision = read_float_type(object, "precision");
  training.sharding = read_enum(object, "sharding", parse_sharding,
                                "none, optimizer, gradients, full, hybrid or hybrid_zero2");
  training.shard_group_size = read_count(object, "shard_group_size", 0, kMaxRanks);
  training.recompute = read_enum(object, "recompute", parse_recompute, "none or full");
  training.offload = read_enum(object, "offload", parse_offload, "none, optimizer or parameters");
  training.validation_samples = read_count(object, "validation_samples");
  training.train_samples = read_count(object, "train_samples");
  training.checkpoint_interval = read_count(object, "checkpoint_interval", 0, kMaxSteps);
  training.keep_checkpoints = read_count(object, "keep_checkpoints", 1, kMaxSteps);
  object.refuse_other_keys();
  return training;
}

Json write_training(const TrainingSpec& training) {
  return Json{{"steps", training.steps},
              {"first_step", training.first_step},
              {"batch_size", training.batch_size},
              {"micro_batch_size", training.micro_batch_size},
              {"learning_rate", training.learning_rate},
              {"schedule", write_schedule(training.schedule)},
              {"weight_decay", training.weight_decay},
              {"beta1", training.beta1},
              {"beta2", training.beta2},
              {"epsilon", training.epsilon},
              {"max_grad_norm", training.max_grad_norm},
              {"seed", training.seed},
              {"precision", to_string(training.precision)},
              {"sharding", to_string(training.sharding)},
              {"shard_group_size", training.shard_group_size},
              {"recompute", to_string(training.recompute)},
              {"offload", to_string(training.offload)},
              {"validation_samples", training.validation_samples},
              {"train_samples", training.train_samples},
              {"checkpoint_interval", training.checkpoint_interval},
              {"keep_checkpoints", training.keep_checkpoints}};
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

void make_absolute(const std::filesystem::path& folder, std::string& path) {
  path = (folder / path).string();  // an absolute `path` replaces the folder
}

}  // namespace

std::string JobKey::job_name() const {
  std::string digits = std::to_string(round);
  digits.insert(0, digits.size() < 4 ? 4 - digits.size() : 0, '0');
  return "xffl-" + project + "-" + run + "-r" + digits + "-" + facility + "-a" +
         std::to_string(attempt);
}

JobSpec parse_job_spec(std::string_view json, std::string_view origin) {
  const Json document = parse_json(json, origin, {.max_bytes = kMaxJobFileBytes, .max_depth = 4});
  JsonObject object(document, std::string(origin));
  read_version(object, kJobVersion, kJobVersion);
  JobSpec spec;
  spec.key = read_key(object.object("key"));
  spec.base_model_path = read_path(object, "base_model_path");
  spec.base_model_sha256 = read_sha256(object, "base_model_sha256");
  spec.train_paths = read_train_paths(object);
  spec.validation = read_validation(object);
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
  return spec;
}

JobSpec read_job_spec(const std::filesystem::path& path) {
  JobSpec spec = parse_job_spec(read_file(path, kMaxJobFileBytes), path.string());
  const std::filesystem::path folder = std::filesystem::absolute(path).parent_path();
  for (std::string* file : {&spec.base_model_path, &spec.update_path, &spec.report_path,
                            &spec.metrics_path, &spec.state_path}) {
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
                      {"train_paths", spec.train_paths},
                      {"validation", std::move(validation)},
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
