#include "xffl/job/job_report.h"

#include <algorithm>
#include <set>

#include "fields.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"

namespace xffl::job {
namespace {

constexpr double kMaxLoss = 1e30;
constexpr double kMaxSeconds = 1e10;  // three centuries
constexpr double kMaxRate = 1e18;

std::string read_optional_sha256(JsonObject& object, std::string_view key) {
  return object.string(key).empty() ? "" : read_sha256(object, key);
}

std::vector<ValidationResult> read_results(JsonObject& object) {
  std::vector<ValidationResult> results;
  std::set<std::string> names;
  for (const Json& item : read_array(object, "validation", kMaxValidationSets)) {
    JsonObject view(item, item_where(object, "validation", results.size()));
    ValidationResult result;
    result.name = read_set_name(view, "name");
    result.tokens = read_count(view, "tokens");
    result.nll_before = read_number(view, "nll_before", 0, kMaxLoss);
    result.nll_after = read_number(view, "nll_after", 0, kMaxLoss);
    view.refuse_other_keys();
    if (!names.insert(result.name).second) view.fail("name", "'" + result.name + "' appears twice");
    results.push_back(std::move(result));
  }
  return results;
}

Json write_results(const std::vector<ValidationResult>& results) {
  Json array = Json::array();
  for (const ValidationResult& result : results) {
    array.push_back(Json{{"name", result.name},
                         {"tokens", result.tokens},
                         {"nll_before", result.nll_before},
                         {"nll_after", result.nll_after}});
  }
  return array;
}

/// a * b, or the largest integer when that overflows.
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

// By the job's own settings, which is no stop.
bool may_end_early(const JobReport& report, const TrainingSpec& training) {
  if (training.max_tokens > 0 && report.tokens >= training.max_tokens) return true;
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
  const Json document = parse_json(json, origin, {.max_bytes = kMaxJobFileBytes, .max_depth = 4});
  JsonObject object(document, std::string(origin));
  const int version = read_version(object, kOldestReportVersion, kReportVersion);
  JobReport report;
  report.key = read_key(object.object("key"));
  report.base_model_sha256 = read_sha256(object, "base_model_sha256");
  report.update_sha256 = read_optional_sha256(object, "update_sha256");
  report.steps = read_count(object, "steps");
  if (version >= 2) report.stopped_early = object.boolean("stopped_early");
  report.samples = read_count(object, "samples");
  report.tokens = read_count(object, "tokens");
  report.train_loss = read_number(object, "train_loss", 0, kMaxLoss);
  report.train_loss_last = read_number(object, "train_loss_last", 0, kMaxLoss);
  report.validation = read_results(object);
  report.train_seconds = read_number(object, "train_seconds", 0, kMaxSeconds);
  report.total_seconds = read_number(object, "total_seconds", 0, kMaxSeconds);
  report.tokens_per_second = read_number(object, "tokens_per_second", 0, kMaxRate);
  report.peak_memory_bytes = read_count(object, "peak_memory_bytes");
  report.world_size = static_cast<int>(read_count(object, "world_size", 1, 1 << 24));
  report.scheduler_job_id = read_text(object, "scheduler_job_id", 64);
  report.restarts = static_cast<int>(read_count(object, "restarts", 0, 1'000'000));
  report.trainer = read_text(object, "trainer", 200);
  if (document.contains("optimizer_lost"))
    report.optimizer_lost = read_text(object, "optimizer_lost", kMaxReasonBytes);
  object.refuse_other_keys();
  return report;
}

JobReport read_job_report(const std::filesystem::path& path) {
  return parse_job_report(read_file(path, kMaxJobFileBytes), path.string());
}

std::string format_job_report(const JobReport& report) {
  Json document{{"version", kReportVersion},
                {"key", write_key(report.key)},
                {"base_model_sha256", report.base_model_sha256},
                {"update_sha256", report.update_sha256},
                {"steps", report.steps},
                {"stopped_early", report.stopped_early},
                {"samples", report.samples},
                {"tokens", report.tokens},
                {"train_loss", report.train_loss},
                {"train_loss_last", report.train_loss_last},
                {"validation", write_results(report.validation)},
                {"train_seconds", report.train_seconds},
                {"total_seconds", report.total_seconds},
                {"tokens_per_second", report.tokens_per_second},
                {"peak_memory_bytes", report.peak_memory_bytes},
                {"world_size", report.world_size},
                {"scheduler_job_id", report.scheduler_job_id},
                {"restarts", report.restarts},
                {"trainer", report.trainer}};
  // Not where there is nothing to say: an earlier coordinator does not know the key.
  if (!report.optimizer_lost.empty()) document["optimizer_lost"] = report.optimizer_lost;
  std::string text = dump_document(document);
  parse_job_report(text, "report.json");
  return text;
}

bool is_to_be_continued(const JobReport& report, const JobSpec& spec) {
  return spec.on_stop == OnStop::kCheckpoint && report.stopped_early &&
         report.update_sha256.empty();
}

void check_report_answers(const JobReport& report, const JobSpec& spec,
                          int64_t max_sequence_length) {
  check_key(report.key, spec.key);
  check_equal("base_model_sha256", report.base_model_sha256, spec.base_model_sha256);
  if (is_to_be_continued(report, spec)) {
    check_range("steps", report.steps, 0, spec.training.steps, "the job's steps");
    return;
  }
  check_work(report, spec.training, max_sequence_length);
  check_validation(report, spec);
}

}  // namespace xffl::job
