#include "xffl/job/job_report.h"

#include <gmock/gmock.h>

#include "samples.h"
#include "support/temp_dir.h"
#include "xffl/job/check_report.h"

namespace xffl::job {
namespace {

using testing::HasSubstr;

constexpr int64_t kMaxSequenceLength = 256;

std::string refusal(const std::string& pointer, const std::string& value) {
  const std::string text = edited(format_job_report(sample_report()), pointer, value);
  return message_of(ErrorKind::kCorrupt, [&] { parse_job_report(text, "report.json"); });
}

/// The error of check_report_answers for the valid report after `change`.
template <class Change>
std::string rejection(Change change) {
  JobReport report = sample_report();
  change(report);
  return message_of(ErrorKind::kRejected,
                    [&] { check_report_answers(report, sample_spec(), kMaxSequenceLength); });
}

TEST(JobReport, TextIsTheGoldenFile) {
  expect_golden("report.json", format_job_report(sample_report()));
}

TEST(JobReport, TheDocumentedExampleIsTheSame) {
  EXPECT_EQ(parse_job_report(documented("report.json"), "docs/reference/job_json.md"),
            sample_report());
}

TEST(JobReport, TheVersionOfEarlierReleasesIsRead) {
  const std::string old =
      edited(edited(format_job_report(sample_report()), "/version", "1"), "/stopped_early", "");
  EXPECT_EQ(parse_job_report(old, "journal"), sample_report());
  const std::string early = edited(format_job_report(sample_report()), "/stopped_early", "true");
  EXPECT_TRUE(parse_job_report(edited(early, "/version", "1"), "journal").stopped_early);
  EXPECT_THAT(refusal("/version", "3"), HasSubstr("should be format version 1 to 2, found 3"));
  EXPECT_THAT(refusal("/stopped_early", "1"), HasSubstr("should be true or false"));
}

TEST(JobReport, KeysOfALaterReleaseAreIgnored) {
  for (const char* pointer : {"/carbon", "/key/site", "/validation/0/accuracy"}) {
    const std::string later =
        edited(format_job_report(sample_report()), pointer, "{\"grams\": [1]}");
    EXPECT_EQ(parse_job_report(later, "report.json"), sample_report()) << pointer;
  }
}

// The keys that a report need not have.
void clear_identities(JobReport& report) {
  report.nodes = report.data_files = report.data_bytes = 0;
  report.data_sha256 = report.program_sha256 = "";
}

TEST(JobReport, AnEnvironmentHasItsKnownKeys) {
  JobReport report = sample_report();
  EXPECT_EQ(format_job_report(report).find("environment"), std::string::npos);
  report.environment.host = "node7";
  report.environment.cpus = 16;
  report.environment.gpus = {"NVIDIA H100, 85 GB, sm_90"};
  const std::string text = format_job_report(report);
  EXPECT_EQ(parse_job_report(text, "x"), report);
  const Json environment = Json::parse(text).at("environment");
  EXPECT_EQ(environment, Json::parse(R"({"host": "node7", "cpus": 16,
                                         "gpus": ["NVIDIA H100, 85 GB, sm_90"]})"));
  const auto refused = [&](const std::string& pointer, const std::string& value) {
    return message_of(ErrorKind::kCorrupt,
                      [&] { parse_job_report(edited(text, pointer, value), "report.json"); });
  };
  EXPECT_THAT(refused("/environment/host", "\"a\\nb\""), HasSubstr("control characters"));
  EXPECT_THAT(refused("/environment/gpus/0", "7"), HasSubstr("gpus[0]"));
  EXPECT_THAT(refused("/environment/cpus", "-1"), HasSubstr("cpus"));
  EXPECT_EQ(parse_job_report(edited(text, "/environment/of_a_later_release", "1"), "x"), report);
}

TEST(JobReport, UnknownIdentitiesAreAbsent) {
  JobReport report = sample_report();
  clear_identities(report);
  const std::string text = format_job_report(report);
  for (const char* key :
       {"nodes", "data_files", "data_bytes", "data_sha256", "program_sha256", "gpu_energy_joules"})
    EXPECT_EQ(text.find(key), std::string::npos) << key;
  EXPECT_EQ(parse_job_report(text, "x"), report);
  EXPECT_THAT(refusal("/nodes", "-1"), HasSubstr("nodes"));
  EXPECT_THAT(refusal("/data_sha256", "\"abc\""), HasSubstr("data_sha256"));
}

TEST(JobReport, RoundTripsThroughAFile) {
  test::TempDir dir;
  JobReport report = sample_report();
  write_file_atomic(dir / "report.json", format_job_report(report));
  EXPECT_EQ(read_job_report(dir / "report.json"), report);
  report.update_sha256 = "";
  report.scheduler_job_id = "";
  report.validation.clear();
  report.train_loss = 0.1 + 0.2;
  report.optimizer_lost = "part-0001-of-0002.safetensors is not there";
  report.gpu_energy_joules = 1'234'567;
  EXPECT_EQ(parse_job_report(format_job_report(report), "x"), report);
}

TEST(JobReport, OptimizerLostIsAbsentWhenTheOptimizerContinues) {
  EXPECT_THAT(format_job_report(sample_report()), testing::Not(HasSubstr("optimizer_lost")));
  EXPECT_THAT(refusal("/optimizer_lost", "\"a\\u001bb\""), HasSubstr("optimizer_lost"));
  EXPECT_THAT(refusal("/optimizer_lost", "3"), HasSubstr("optimizer_lost"));
}

TEST(JobReport, EveryKeyIsRequired) {
  JobReport report = sample_report();
  clear_identities(report);
  const Json document = Json::parse(format_job_report(report));
  for (const std::string& parent :
       {std::string(), std::string("/key"), std::string("/validation/0")}) {
    const Json& object = parent.empty() ? document : document.at(Json::json_pointer(parent));
    for (const auto& [key, value] : object.items()) {
      EXPECT_THAT(refusal(parent + "/" + key, ""), HasSubstr("'" + key + "' is missing"));
    }
  }
}

TEST(JobReport, RefusesForgedNumbers) {
  for (const char* key : {"steps", "samples", "tokens", "peak_memory_bytes"}) {
    for (const char* value : {"-1", "1e18", "1000000000000000000", "9007199254740993",
                              "18446744073709551615", "1.5", "\"1\"", "null"}) {
      EXPECT_THAT(refusal(std::string("/") + key, value), HasSubstr(std::string("'") + key + "'"))
          << value;
    }
  }
  for (const char* key :
       {"train_loss", "train_loss_last", "train_seconds", "total_seconds", "tokens_per_second"}) {
    for (const char* value : {"-1", "1e300", "\"nan\"", "null"}) {
      EXPECT_THAT(refusal(std::string("/") + key, value), HasSubstr(std::string("'") + key + "'"))
          << value;
    }
  }
  EXPECT_THAT(refusal("/validation/0/nll_after", "-0.5"), HasSubstr("validation[0]: 'nll_after'"));
  EXPECT_THAT(refusal("/world_size", "0"), HasSubstr("'world_size'"));
  EXPECT_THAT(refusal("/restarts", "-1"), HasSubstr("'restarts'"));
}

TEST(JobReport, RefusesNumbersThatJsonDoesNotHave) {
  const std::string text = format_job_report(sample_report());
  for (const std::string& value :
       {std::string("NaN"), std::string("Infinity"), std::string("1e999")}) {
    std::string forged = text;
    forged.replace(forged.find("3.25"), 4, value);
    EXPECT_NE(message_of(ErrorKind::kCorrupt, [&] { parse_job_report(forged, "report.json"); }),
              "");
  }
}

TEST(JobReport, RefusesTextThatSteersATerminal) {
  const std::string message = refusal("/trainer", "\"\\u001b[2Jxffl\"");
  EXPECT_THAT(message, HasSubstr("'trainer'"));
  EXPECT_EQ(message.find('\x1b'), std::string::npos);
  EXPECT_THAT(refusal("/scheduler_job_id", "\"" + std::string(65, '1') + "\""),
              HasSubstr("'scheduler_job_id'"));
  EXPECT_THAT(refusal("/validation/1/name", "\"it\""), HasSubstr("'it' appears twice"));
}

TEST(JobReport, RefusesTruncatedText) {
  const std::string text = format_job_report(sample_report());
  for (size_t size = 0; size + 2 < text.size(); size += 7) {
    EXPECT_NE(message_of(ErrorKind::kCorrupt,
                         [&] { parse_job_report(text.substr(0, size), "report.json"); }),
              "");
  }
}

TEST(CheckReportAnswers, AcceptsTheAnswer) {
  EXPECT_NO_THROW(check_report_answers(sample_report(), sample_spec(), kMaxSequenceLength));
}

TEST(CheckReportAnswers, AcceptsFewerStepsOnlyWithStoppedEarly) {
  JobReport report = sample_report();
  report.steps = 1;
  report.samples = 16;
  report.tokens = 16 * 255;
  const auto check = [&] { check_report_answers(report, sample_spec(), kMaxSequenceLength); };
  EXPECT_THAT(message_of(ErrorKind::kRejected, check),
              HasSubstr("steps: found 1, expected 40, or \"stopped_early\": true"));
  report.stopped_early = true;
  EXPECT_NO_THROW(check());
  report.steps = 0;
  EXPECT_THAT(message_of(ErrorKind::kRejected, check), HasSubstr("steps: found 0"));
}

TEST(CheckReportAnswers, AcceptsFewerStepsWhereTheJobsOwnLimitsEndIt) {
  JobSpec spec = sample_spec();
  JobReport report = sample_report();
  report.steps = 12;
  report.samples = 12 * 16;
  report.tokens = 12 * 16 * 255;
  const auto check = [&] { check_report_answers(report, spec, kMaxSequenceLength); };
  const auto words = HasSubstr("steps: found 12, expected 40");
  EXPECT_THAT(message_of(ErrorKind::kRejected, check), words);
  spec.training.max_tokens = report.tokens + 1;
  EXPECT_THAT(message_of(ErrorKind::kRejected, check), words);
  spec.training.max_tokens = report.tokens;
  EXPECT_NO_THROW(check());
  spec.training.max_tokens = 0;
  spec.training.early_stop_patience = 2;
  EXPECT_THAT(message_of(ErrorKind::kRejected, check), words) << "without validations";
  spec.training.validation_interval = 5;
  EXPECT_THAT(message_of(ErrorKind::kRejected, check), words) << "not after a validation";
  spec.training.validation_interval = 4;
  EXPECT_NO_THROW(check());
  spec.training.early_stop_patience = 0;
  EXPECT_THAT(message_of(ErrorKind::kRejected, check), words) << "a validation ends no job";
  spec.training.epochs = 0.5;
  EXPECT_NO_THROW(check()) << "only the trainer knows the steps of half an epoch";
}

TEST(CheckReportAnswers, AJobThatStoppedEarlyNeedNotHaveMeasured) {
  JobReport report = sample_report();
  report.stopped_early = true;
  report.validation.pop_back();
  const auto check = [&] { check_report_answers(report, sample_spec(), kMaxSequenceLength); };
  EXPECT_NO_THROW(check());
  report.validation[0].name = "de";
  EXPECT_THAT(message_of(ErrorKind::kRejected, check), HasSubstr("'de'"));
}

TEST(CheckReportAnswers, AStopWithoutAnUpdateIsACheckpointWhereTheJobMayWriteOne) {
  JobSpec spec = sample_spec();
  JobReport report = sample_report();
  report.stopped_early = true;
  report.update_sha256 = "";
  const auto check = [&] { check_report_answers(report, spec, kMaxSequenceLength); };
  EXPECT_TRUE(is_checkpointed(report, spec));
  EXPECT_NO_THROW(check());
  report.steps = 41;
  EXPECT_THAT(message_of(ErrorKind::kRejected, check),
              HasSubstr("steps: found 41, expected 0 .. 40"));
  report.steps = 40;
  report.key.attempt = 2;
  EXPECT_THAT(message_of(ErrorKind::kRejected, check), HasSubstr("key.attempt"))
      << "of another job";
  report.key.attempt = 1;
  report.base_model_sha256 = std::string(64, 'c');
  EXPECT_THAT(message_of(ErrorKind::kRejected, check), HasSubstr("base_model_sha256"));
  report.base_model_sha256 = spec.base_model_sha256;
  spec.on_stop = OnStop::kUpdate;
  EXPECT_FALSE(is_checkpointed(report, spec));
  EXPECT_THAT(message_of(ErrorKind::kRejected, check), HasSubstr("update_sha256"));
}

TEST(CheckReportAnswers, RejectsAnotherJobsReport) {
  EXPECT_THAT(rejection([](JobReport& r) { r.key.round = 1; }),
              HasSubstr("key.round: found 1, expected 2"));
  EXPECT_THAT(rejection([](JobReport& r) { r.key.attempt = 3; }),
              HasSubstr("key.attempt: found 3, expected 1"));
  EXPECT_THAT(rejection([](JobReport& r) { r.key.facility = "brno"; }),
              HasSubstr("key.facility: found 'brno', expected 'alba'"));
  EXPECT_THAT(rejection([](JobReport& r) { r.key.project = "other"; }), HasSubstr("key.project"));
  EXPECT_THAT(rejection([](JobReport& r) { r.key.run = "0002"; }), HasSubstr("key.run"));
  EXPECT_THAT(rejection([](JobReport& r) { r.key.nonce = std::string(32, '0'); }),
              HasSubstr("key.nonce"));
  EXPECT_THAT(rejection([](JobReport& r) { r.base_model_sha256 = std::string(64, 'c'); }),
              HasSubstr("base_model_sha256"));
}

TEST(CheckReportAnswers, RejectsOtherAmountsOfWork) {
  EXPECT_THAT(rejection([](JobReport& r) { r.steps = 0; }),
              HasSubstr("steps: found 0, expected 1 .. 40"));
  EXPECT_THAT(rejection([](JobReport& r) { r.steps = 41; }),
              HasSubstr("steps: found 41, expected 1 .. 40"));
  EXPECT_THAT(rejection([](JobReport& r) { r.samples = 1281; }),
              HasSubstr("samples: found 1281, expected 1 .. 1280 (batch_size 16 x 40 steps x 2 "
                        "groups)"));
  EXPECT_THAT(rejection([](JobReport& r) {
                r.stopped_early = true;
                r.steps = 20;
                r.samples = 641;
              }),
              HasSubstr("samples: found 641, expected 1 .. 640 (batch_size 16 x 20 steps"))
      << "the reported steps count, not the job's";
  EXPECT_THAT(rejection([](JobReport& r) { r.samples = 0; }), HasSubstr("samples: found 0"));
  EXPECT_THAT(rejection([](JobReport& r) { r.tokens = 640 * 256 + 1; }),
              HasSubstr("tokens: found 163841, expected 1 .. 163840"));
  EXPECT_THAT(rejection([](JobReport& r) { r.tokens = 0; }), HasSubstr("tokens: found 0"));
  EXPECT_THAT(rejection([](JobReport& r) { r.update_sha256 = ""; }), HasSubstr("update_sha256"));
}

// The job ends with the step that reaches max_tokens: here a step has at most 16 x 2 x 256 tokens.
TEST(CheckReportAnswers, MaxTokensBoundsTheTokens) {
  JobSpec spec = sample_spec();
  spec.training.max_tokens = 1000;
  JobReport report = sample_report();
  report.samples = 640;
  report.tokens = 1000 + 16 * 2 * 256;
  const auto check = [&] { check_report_answers(report, spec, kMaxSequenceLength); };
  EXPECT_NO_THROW(check());
  ++report.tokens;
  EXPECT_THAT(message_of(ErrorKind::kRejected, check),
              HasSubstr("tokens: found 9193, expected 1 .. 9192 (max_tokens 1000 and one step)"));
}

TEST(CheckReportAnswers, BoundsDoNotOverflow) {
  JobSpec spec = sample_spec();
  spec.training.batch_size = 1 << 24;
  spec.training.steps = 1'000'000'000;
  JobReport report = sample_report();
  report.steps = spec.training.steps;
  report.samples = int64_t{1} << 53;
  report.tokens = int64_t{1} << 53;
  EXPECT_NO_THROW(check_report_answers(report, spec, int64_t{1} << 40));
}

TEST(CheckReportAnswers, ValidationNamesAreThoseOfTheJob) {
  EXPECT_THAT(rejection([](JobReport& r) { r.validation.pop_back(); }),
              HasSubstr("no result for 'cs'"));
  EXPECT_THAT(rejection([](JobReport& r) { r.validation[0].name = "de"; }), HasSubstr("'de'"));
}

TEST(CheckReportAnswers, EvaluateOnlyJobsTrainNothing) {
  JobSpec spec = sample_spec();
  spec.training.steps = 0;
  JobReport report = sample_report();
  const auto check = [&] { check_report_answers(report, spec, kMaxSequenceLength); };
  EXPECT_THAT(message_of(ErrorKind::kRejected, check),
              HasSubstr("steps: found 40, expected 0 .. 0 (the job only evaluates)"));
  report.steps = 0;
  EXPECT_THAT(message_of(ErrorKind::kRejected, check), HasSubstr("samples: found 640"));
  report.samples = 0;
  EXPECT_THAT(message_of(ErrorKind::kRejected, check), HasSubstr("tokens: found 163200"));
  report.tokens = 0;
  EXPECT_THAT(message_of(ErrorKind::kRejected, check), HasSubstr("update_sha256"));
  report.update_sha256 = "";
  EXPECT_NO_THROW(check());
}

// The coordinator would refuse the file, and report a rank that has not started.
TEST(RankCheckFile, OfManyShardsStaysWithinTheReadersLimits) {
  for (const size_t length : {size_t{1}, size_t{300}}) {
    RankCheck check;
    for (int i = 0; i < 300; ++i)
      check.data.push_back({.path = "/" + std::string(length, 'x') + std::to_string(i),
                            .vocab_size = 300,
                            .sequence_length = 64,
                            .problem = {}});
    check.data.back().vocab_size = 301;
    const std::string text = format_rank_check(check);
    EXPECT_LE(text.size(), kMaxCheckBytes);
    const RankCheck read = parse_rank_check(text, "rank-0.json");
    EXPECT_GT(read.data.size(), 100u);
    EXPECT_THAT(read.data, testing::Contains(check.data.back())) << "the only one of its kind";
  }
}

TEST(RankCheckFile, OfManyBadShardsHasEachProblem) {
  RankCheck check;
  for (int i = 0; i < 300; ++i)
    check.data.push_back({.path = "/" + std::to_string(i), .problem = "it does not exist"});
  check.data.back().problem = "it is shorter than its header says";
  const RankCheck read = parse_rank_check(format_rank_check(check), "rank-0.json");
  EXPECT_THAT(read.data, testing::Contains(check.data.front()));
  EXPECT_THAT(read.data, testing::Contains(check.data.back()));
}

TEST(RankCheckFile, LongTextsAreReadAsFarAsTheyFit) {
  for (const std::string& text :
       {std::string(1999, 'a') + "\u00e9", std::string(1998, 'a') + std::string(9, '\xff')}) {
    RankCheck check;
    check.problem = text;
    const RankCheck read = parse_rank_check(format_rank_check(check), "rank-0.json");
    EXPECT_EQ(read.problem.substr(0, 1998), std::string(1998, 'a'));
  }
}

}  // namespace
}  // namespace xffl::job
