#include "xffl/job/job_report.h"

#include <algorithm>

#include "json_fields.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"

namespace xffl::job {
namespace {

constexpr double kMaxLoss = 1e30;
constexpr double kMaxSeconds = 1e10;  // three centuries
constexpr double kMaxRate = 1e18;

const FieldTable& result_fields() {
  using R = ValidationResult;
  static const FieldTable fields({
      field("name", &R::name, "", {.validate = validate_set_name}),
      field("tokens", &R::tokens, "", {.max = kMaxCount}),
      field("nll_before", &R::nll_before, "", {.max = kMaxLoss}),
      field("nll_after", &R::nll_after, "", {.max = kMaxLoss}),
      field("accuracy_before", &R::accuracy_before, "", {.max = 1, .omit_empty = true}),
      field("accuracy_after", &R::accuracy_after, "", {.max = 1, .omit_empty = true}),
  });
  return fields;
}

const FieldTable& environment_fields() {
  using E = TrainerEnvironment;
  const Field text{.max = 200, .omit_empty = true}, count{.max = kMaxCount, .omit_empty = true};
  static const FieldTable fields({
      field("host", &E::host, "", text),
      field("system", &E::system, "", text),
      field("torch", &E::torch, "", text),
      field("cpu_capability", &E::cpu_capability, "", text),
      field("cpus", &E::cpus, "", count),
      field("threads", &E::threads, "", count),
      field("memory_bytes", &E::memory_bytes, "", count),
      field("shm_bytes", &E::shm_bytes, "", count),
      field("shm_free_bytes", &E::shm_free_bytes, "", count),
      field("backend", &E::backend, "", text),
      field("cuda", &E::cuda, "", text),
      field("driver", &E::driver, "", text),
      field("cudnn", &E::cudnn, "", text),
      field("nccl", &E::nccl, "", text),
      field("architectures", &E::architectures, "", text),
      field("gpus", &E::gpus, "", text),
      field("interfaces", &E::interfaces, "", text),
      field("infiniband", &E::infiniband, "", text),
  });
  return fields;
}

const FieldTable& report_fields() {
  using R = JobReport;
  static const FieldTable fields({
      field("key", &R::key, "", {.table = &job_key_fields()}),
      field("base_model_sha256", &R::base_model_sha256, "", {.validate = validate_sha256}),
      field("update_sha256", &R::update_sha256, "", {.validate = validate_sha256_or_empty}),
      field("steps", &R::steps, "", {.max = kMaxCount}),
      field("stopped_early", &R::stopped_early, "", {.since = 2}),
      field("samples", &R::samples, "", {.max = kMaxCount}),
      field("tokens", &R::tokens, "", {.max = kMaxCount}),
      field("train_loss", &R::train_loss, "", {.max = kMaxLoss}),
      field("train_loss_last", &R::train_loss_last, "", {.max = kMaxLoss}),
      field("validation", &R::validation, "", {.table = &result_fields()}),
      field("train_seconds", &R::train_seconds, "", {.max = kMaxSeconds}),
      field("total_seconds", &R::total_seconds, "", {.max = kMaxSeconds}),
      field("tokens_per_second", &R::tokens_per_second, "", {.max = kMaxRate}),
      field("peak_memory_bytes", &R::peak_memory_bytes, "", {.max = kMaxCount}),
      field("world_size", &R::world_size, "", {.min = 1, .max = 1 << 24}),
      field("scheduler_job_id", &R::scheduler_job_id, "", {.max = 64}),
      field("restarts", &R::restarts, "", {.max = 1e6}),
      field("trainer", &R::trainer, "", {.max = 200}),
      // An earlier coordinator does not know the keys below.
      field("nodes", &R::nodes, "", {.max = 1 << 24, .omit_empty = true}),
      field("data_files", &R::data_files, "", {.max = kMaxCount, .omit_empty = true}),
      field("data_bytes", &R::data_bytes, "", {.max = kMaxCount, .omit_empty = true}),
      field("data_sha256", &R::data_sha256, "", {.validate = validate_sha256, .omit_empty = true}),
      field("program_sha256", &R::program_sha256, "",
            {.validate = validate_sha256, .omit_empty = true}),
      field("gpu_energy_joules", &R::gpu_energy_joules, "", {.max = kMaxCount, .omit_empty = true}),
      field("samples_per_second", &R::samples_per_second, "",
            {.max = kMaxRate, .omit_empty = true}),
      field("tokens_per_second_per_rank", &R::tokens_per_second_per_rank, "",
            {.max = kMaxRate, .omit_empty = true}),
      field("startup_seconds", &R::startup_seconds, "", {.max = kMaxSeconds, .omit_empty = true}),
      field("evaluation_seconds", &R::evaluation_seconds, "",
            {.max = kMaxSeconds, .omit_empty = true}),
      field("environment", &R::environment, "",
            {.table = &environment_fields(), .omit_empty = true}),
      field("train_accuracy", &R::train_accuracy, "", {.max = 1, .omit_empty = true}),
      field("train_accuracy_last", &R::train_accuracy_last, "", {.max = 1, .omit_empty = true}),
      field("optimizer_lost", &R::optimizer_lost, "", {.max = kMaxReasonBytes, .omit_empty = true}),
  });
  return fields;
}

/// a * b, or the largest integer when the product overflows.
int64_t saturating_product(int64_t a, int64_t b) {
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

[[noreturn]] void reject(std::string_view field, const std::string& found,
                         const std::string& expected) {
  throw Error(ErrorKind::kRejected, "report.json: " + std::string(field) + ": found " +
                                        log::printable(found, 200) + ", expected " + expected);
}

void check_equal(std::string_view field, const std::string& found, const std::string& expected) {
  if (found != expected) reject(field, "'" + found + "'", "'" + expected + "'");
}

void check_equal(std::string_view field, int64_t found, int64_t expected) {
  if (found != expected) reject(field, std::to_string(found), std::to_string(expected));
}

void check_range(std::string_view field, int64_t found, int64_t min, int64_t max,
                 const std::string& why) {
  if (found < min || found > max) {
    reject(field, std::to_string(found),
           std::to_string(min) + " .. " + std::to_string(max) + " (" + why + ")");
  }
}

void check_key(const JobKey& found, const JobKey& expected) {
  check_equal("key.project", found.project, expected.project);
  check_equal("key.run", found.run, expected.run);
  check_equal("key.round", found.round, expected.round);
  check_equal("key.facility", found.facility, expected.facility);
  check_equal("key.attempt", found.attempt, expected.attempt);
  check_equal("key.nonce", found.nonce, expected.nonce);
}

// Whether the job's own settings may end it early, which does not count as a stop.
bool may_end_early(const JobReport& report, const TrainingSpec& training) {
  if (training.max_tokens > 0 && report.tokens >= training.max_tokens) return true;
  if (training.epochs > 0) return true;  // only the trainer knows the steps
  return training.early_stop_patience > 0 && training.validation_interval > 0 &&
         report.steps % training.validation_interval == 0;
}

void check_work(const JobReport& report, const TrainingSpec& training,
                int64_t max_sequence_length) {
  if (training.steps == 0) {
    for (const auto& [field, found] :
         {std::pair{"steps", report.steps}, std::pair{"samples", report.samples},
          std::pair{"tokens", report.tokens}}) {
      check_range(field, found, 0, 0, "the job only evaluates");
    }
    check_equal("update_sha256", report.update_sha256, "");
    return;
  }
  check_range("steps", report.steps, 1, training.steps, "the job's steps");
  if (report.steps < training.steps && !report.stopped_early && !may_end_early(report, training)) {
    reject("steps", std::to_string(report.steps),
           std::to_string(training.steps) + ", or \"stopped_early\": true");
  }
  const int64_t groups = training.groups.count;
  check_range("samples", report.samples, 1,
              saturating_product(saturating_product(training.batch_size, groups), report.steps),
              "batch_size " + std::to_string(training.batch_size) + " x " +
                  std::to_string(report.steps) + " steps" +
                  (groups > 1 ? " x " + std::to_string(groups) + " groups" : ""));
  check_range("tokens", report.tokens, 1, saturating_product(report.samples, max_sequence_length),
              std::to_string(report.samples) + " samples x " + std::to_string(max_sequence_length) +
                  " tokens");
  if (training.max_tokens > 0) {
    // The job ends with the step that reaches the limit.
    const int64_t step =
        saturating_product(saturating_product(training.batch_size, groups), max_sequence_length);
    check_range("tokens", report.tokens, 1,
                step > INT64_MAX - training.max_tokens ? INT64_MAX : training.max_tokens + step,
                "max_tokens " + std::to_string(training.max_tokens) + " and one step");
  }
  if (report.update_sha256.empty()) {
    reject("update_sha256", "an empty string", "the root hash of the update's manifest.json");
  }
}

void check_validation(const JobReport& report, const JobSpec& spec) {
  for (const ValidationResult& result : report.validation) {
    const auto is_asked = [&](const ValidationSet& set) { return set.name == result.name; };
    if (std::none_of(spec.validation.begin(), spec.validation.end(), is_asked)) {
      reject("validation", "'" + result.name + "'", "only the sets that job.json names");
    }
  }
  if (report.stopped_early) return;
  for (const ValidationSet& set : spec.validation) {
    const auto is_given = [&](const ValidationResult& result) { return set.name == result.name; };
    if (std::none_of(report.validation.begin(), report.validation.end(), is_given)) {
      reject("validation", "no result for '" + set.name + "'",
             "one result for every set that job.json names");
    }
  }
}

}  // namespace

JobReport parse_job_report(std::string_view json, std::string_view origin) {
  const Json document = parse_json(json, origin, {.max_bytes = kMaxJobFileBytes, .max_depth = 6});
  JsonObject object(document, std::string(origin));
  const int version = object.version(kOldestReportVersion, kReportVersion);
  JobReport report;
  read_fields(object, report_fields(), &report, version);
  return report;
}

JobReport read_job_report(const std::filesystem::path& path) {
  return parse_job_report(read_file(path, kMaxJobFileBytes), path.string());
}

std::string format_job_report(const JobReport& report) {
  Json document{{"version", kReportVersion}};
  write_fields(document, report_fields(), &report);
  std::string text = dump_document(document);
  parse_job_report(text, "report.json");
  return text;
}

Json environment_json(const TrainerEnvironment& environment) {
  Json json = Json::object();
  write_fields(json, environment_fields(), &environment, true);
  return json;
}

bool is_checkpointed(const JobReport& report, const JobSpec& spec) {
  return spec.on_stop == OnStop::kCheckpoint && report.stopped_early &&
         report.update_sha256.empty();
}

void check_report_answers(const JobReport& report, const JobSpec& spec,
                          int64_t max_sequence_length) {
  check_key(report.key, spec.key);
  check_equal("base_model_sha256", report.base_model_sha256, spec.base_model_sha256);
  if (is_checkpointed(report, spec)) {
    check_range("steps", report.steps, 0, spec.training.steps, "the job's steps");
    return;
  }
  check_work(report, spec.training, max_sequence_length);
  check_validation(report, spec);
}

}  // namespace xffl::job
