// report.json: a written report is read back, and a report that answers a job is within its bounds.
#include <cmath>

#include "fuzz.h"
#include "xffl/job/job_report.h"

using namespace xffl;

namespace {

constexpr int64_t kSequenceLength = 256;

// The job of the reports in the corpus.
job::JobSpec asked_job() {
  job::JobSpec spec;
  spec.key = {"llama-it-cs", "0003", 2, "alba", 1, "0123456789abcdef0123456789abcdef"};
  spec.base_model_sha256 = std::string(64, 'a');
  spec.validation = {{"it", "/it.tokens"}, {"cs", "/cs.tokens"}};
  spec.training.steps = 40;
  spec.training.batch_size = 16;
  return spec;
}

void check_answer(const job::JobReport& report, const job::JobSpec& spec) {
  const bool answers = fuzz::accepted([&] {
                         check_report_answers(report, spec, kSequenceLength);
                         return true;
                       }).has_value();
  if (!answers) return;
  fuzz::expect(report.key == spec.key, "a report of another job is refused");
  fuzz::expect(report.steps >= 1 && report.steps <= spec.training.steps, "steps within the job");
  fuzz::expect(report.samples >= 1 && report.samples <= report.steps * spec.training.batch_size,
               "samples within the batches");
  fuzz::expect(report.tokens >= 1 && report.tokens <= report.samples * kSequenceLength,
               "tokens within the samples");
  fuzz::expect(report.update_sha256.size() == 64, "an update has a hash");
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const job::JobSpec spec = asked_job();
  const auto report = fuzz::accepted(
      [&] { return job::parse_job_report(fuzz::text_of(data, size), "report.json"); });
  if (!report) return 0;
  for (const double number : {report->train_loss, report->train_loss_last, report->train_seconds,
                              report->total_seconds, report->tokens_per_second})
    fuzz::expect(std::isfinite(number) && number >= 0, "numbers are finite and not negative");
  const std::string text = job::format_job_report(*report);
  const job::JobReport again = job::parse_job_report(text, "report.json");
  fuzz::expect(again == *report, "a written report is read back", text);
  fuzz::expect(job::format_job_report(again) == text, "the text is a fixed point", text);
  check_answer(*report, spec);
  return 0;
}
