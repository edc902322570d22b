#include "xffl/job/job_spec.h"

#include <gmock/gmock.h>

#include "samples.h"
#include "support/temp_dir.h"
#include "xffl/job/fields.h"
#include "xffl/job/supported.h"

namespace xffl::job {
namespace {

using testing::HasSubstr;

std::string refusal(const std::string& pointer, const std::string& value) {
  const std::string text = edited(format_job_spec(sample_spec()), pointer, value);
  return message_of(ErrorKind::kCorrupt, [&] { parse_job_spec(text, "job.json"); });
}

TEST(JobSpec, TextIsTheGoldenFile) { expect_golden("job.json", format_job_spec(sample_spec())); }

TEST(JobSpec, TheDocumentedExampleIsTheSame) {
  EXPECT_EQ(parse_job_spec(documented("job.json"), "docs/reference/job_json.md"), sample_spec());
}

TEST(JobSpec, RoundTrips) {
  const JobSpec spec = sample_spec();
  EXPECT_EQ(parse_job_spec(format_job_spec(spec), "job.json"), spec);
  JobSpec evaluate = spec;
  evaluate.training.steps = 0;
  evaluate.train_paths.clear();
  evaluate.update_kind = UpdateKind::kWeights;
  evaluate.update_dtype = FloatType::kFloat16;
  evaluate.training.schedule.kind = ScheduleKind::kLinear;
  EXPECT_EQ(parse_job_spec(format_job_spec(evaluate), "job.json"), evaluate);
}

// An earlier trainer does the jobs that it knows, and refuses those that ask for more by their
// version.
TEST(JobSpec, AskForTheLowestVersionThatHasTheirKeys) {
  const Json training = Json::parse(format_job_spec(sample_spec())).at("training");
  for (const char* key : {"optimizer", "momentum", "nesterov", "validation_batch_size", "epochs",
                          "total_rounds", "attention"})
    EXPECT_FALSE(training.contains(key)) << key;
  JobSpec spec = sample_spec();
  spec.training.validation_batch_size = 3;
  spec.training.attention = AttentionKernel::kEfficient;
  EXPECT_EQ(Json::parse(format_job_spec(spec)).at("version"), 4) << "they change only the speed";
  spec.training.optimizer = OptimizerKind::kSgd;
  EXPECT_EQ(Json::parse(format_job_spec(spec)).at("version"), 5);
  spec.training.momentum = 0.9;
  spec.training.nesterov = true;
  spec.training.epochs = 0.25;
  spec.training.total_rounds = 8;
  EXPECT_EQ(parse_job_spec(format_job_spec(spec), "job.json"), spec);
}

TEST(JobSpec, AskForTheVersionOfEachKindOfAdapter) {
  const auto check = [](int version, const auto& change) {
    JobSpec spec = sample_spec();
    change(spec.training.lora);
    const std::string text = format_job_spec(spec);
    EXPECT_EQ(Json::parse(text).at("version"), version) << text;
    EXPECT_EQ(parse_job_spec(text, "job.json"), spec);
  };
  check(4, [](Lora&) {});
  check(5, [](Lora& lora) { lora.rank_stabilized = true; });
  check(5, [](Lora& lora) { lora.weight_decomposed = true; });
  check(5, [](Lora& lora) { lora.modules_to_save = {"lm_head"}; });
}

TEST(JobSpec, RelativePathsAreThoseOfItsFolder) {
  test::TempDir dir;
  JobSpec written = sample_spec();
  written.train_paths[1] = "it-1.tokens";
  write_file_atomic(dir / "job.json", format_job_spec(written));
  const JobSpec spec = read_job_spec(dir / "job.json");
  EXPECT_EQ(spec.base_model_path, dir / "../../r0001/global");
  EXPECT_EQ(spec.update_path, dir / "out/update");
  EXPECT_EQ(spec.report_path, dir / "out/report.json");
  EXPECT_EQ(spec.metrics_path, dir / "out/metrics.jsonl");
  EXPECT_EQ(spec.state_path, dir / "../state");
  EXPECT_EQ(spec.optimizer_path, dir / "../../optimizer");
  EXPECT_EQ(spec.adapter_path, dir / "../../r0001/adapter");
  EXPECT_EQ(spec.base_model_packed->path, dir / "packed-bbbbbbbbbbbbbbbb");
  EXPECT_EQ(spec.base_model_packed->reference_path, dir / "../../r0000/global");
  EXPECT_EQ(spec.base_model_packed->failure_path, dir / "out/packed.failure");
  EXPECT_EQ(spec.train_paths[0], "/data/it-0.tokens");
  EXPECT_EQ(spec.train_paths[1], dir / "it-1.tokens");
  EXPECT_EQ(spec.validation[0].path, "/data/it-validation.tokens");
  EXPECT_EQ(spec.validation[1].path, dir / "cs-validation.tokens");
}

TEST(JobSpec, MayNameThousandsOfShards) {
  JobSpec spec = sample_spec();
  spec.train_paths.clear();
  for (int i = 0; i < 5000; ++i)
    spec.train_paths.push_back("/data/it-" + std::to_string(i) + ".tokens");
  EXPECT_EQ(parse_job_spec(format_job_spec(spec), "job.json"), spec);
}

TEST(JobSpec, PathsMayHaveLettersBeyondAscii) {
  JobSpec spec = sample_spec();
  spec.train_paths = {"/data/M\xc3\xbcller.tokens"};
  EXPECT_EQ(parse_job_spec(format_job_spec(spec), "job.json"), spec);
}

TEST(JobSpec, NamesTheFileThatIsAbsent) {
  EXPECT_THAT(message_of(ErrorKind::kNotFound, [] { read_job_spec("/nonexistent/job.json"); }),
              HasSubstr("/nonexistent/job.json"));
}

TEST(JobSpec, EveryKeyIsRequiredAndUnknownOnesAreIgnored) {
  const Json document = Json::parse(format_job_spec(sample_spec()));
  for (const std::string& parent :
       {std::string(), std::string("/key"), std::string("/training"),
        std::string("/training/schedule"), std::string("/validation/0")}) {
    const Json& object = parent.empty() ? document : document.at(Json::json_pointer(parent));
    for (const auto& [key, value] : object.items()) {
      EXPECT_THAT(refusal(parent + "/" + key, ""), HasSubstr("'" + key + "' is missing")) << parent;
    }
    const std::string later =
        edited(document.dump(), parent + "/of_a_later_release", "{\"a\": [1]}");
    EXPECT_EQ(parse_job_spec(later, "job.json"), sample_spec()) << parent;
  }
}

TEST(JobSpec, RefusesAnotherVersion) {
  EXPECT_THAT(refusal("/version", "2"), HasSubstr("should be format version 4 to 5, found 2"));
  EXPECT_THAT(refusal("/version", "6"),
              HasSubstr("should be format version 4 to 5, found 6; both sides must run releases"));
  EXPECT_THAT(refusal("/version", "\"3\""), HasSubstr("'version'"));
}

TEST(JobSpec, ErrorsGiveThePathOfTheKey) {
  EXPECT_THAT(refusal("/training/schedule/kind", "\"step\""),
              HasSubstr("job.json: training: schedule: 'kind' should be"));
  EXPECT_THAT(refusal("/validation/1/name", "\"it\""),
              HasSubstr("job.json: validation[1]: 'name' 'it' appears twice"));
  EXPECT_THAT(refusal("/train_paths/1", "7"), HasSubstr("train_paths[1]"));
}

TEST(JobSpec, RefusesValuesOutOfRange) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> wrong{
      {"/key/project", {"\"\"", "\"a b\"", "\"../x\"", "\"-x\"", "\"A\"", "7"}},
      {"/key/run", {"\"\"", "\"x\"", "\"../1\"", "3"}},
      {"/key/round", {"0", "-1", "1.5", "1000001", "\"2\""}},
      {"/key/facility", {"\"\"", "\"a/b\"", "\"a\\nb\""}},
      {"/key/attempt", {"0"}},
      {"/key/nonce", {"\"\"", "\"0123456789ABCDEF0123456789ABCDEF\"", "\"0123\""}},
      {"/base_model_path", {"\"\"", "\"a\\u0000b\"", "\"a\\nb\"", "null"}},
      {"/base_model_sha256", {"\"\"", "\"abc\""}},
      {"/train_paths", {"[]", "{}", "[\"\"]", "null"}},
      {"/validation", {"{}", "[1]"}},
      {"/validation/0/name", {"\"\"", "\"a/b\"", "\"a b\""}},
      {"/update_kind", {"\"gradient\"", "1"}},
      {"/update_dtype", {"\"float32\"", "\"int8\""}},
      {"/training/steps", {"-1", "1e9", "1000000001"}},
      {"/training/first_step", {"-1"}},
      {"/training/batch_size", {"0"}},
      {"/training/micro_batch_size", {"0"}},
      {"/training/learning_rate", {"-1e-5", "1e4", "\"1e-5\""}},
      {"/training/schedule/warmup_steps", {"-1"}},
      {"/training/schedule/min_ratio", {"1.5", "-0.1"}},
      {"/training/weight_decay", {"-0.1"}},
      {"/training/beta1", {"1", "-0.1"}},
      {"/training/beta2", {"1.0"}},
      {"/training/epsilon", {"-1"}},
      {"/training/max_grad_norm", {"-1"}},
      {"/training/seed", {"-1", "1.5", "18446744073709551616"}},
      {"/training/precision", {"\"fp8\""}},
      {"/training/masters", {"\"bf16\"", "null"}},
      {"/training/moment_dtype", {"\"fp16\""}},
      {"/training/gradient_dtype", {"\"fp16\"", "16"}},
      {"/training/early_stop_keep", {"\"first\"", "true"}},
      {"/training/sharding", {"\"zero3\"", "3"}},
      {"/training/shard_group_size", {"-1", "1048577"}},
      {"/training/recompute", {"\"all\""}},
      {"/training/offload", {"\"disk\""}},
      {"/training/validation_samples", {"-1", "9007199254740993"}},
      {"/training/keep_checkpoints", {"0", "-1"}},
      {"/training/train_samples", {"-1"}},
      {"/adapter_path", {"\"a\\nb\"", "null"}},
      {"/adapter_sha256", {"\"\"", "\"abc\""}},
      {"/optimizer_path", {"\"\"", "null"}},
      {"/training/keep_optimizer", {"false", "1"}},
      {"/training/proximal", {"-1", "\"1\""}},
      {"/training/freeze", {"[\"\"]", "[\"a b\"]", "\"a\""}},
      {"/training/lora/rank", {"-1", "65537"}},
      {"/training/lora/dropout", {"1"}},
      {"/training/lora/target_modules", {"[]"}},
      {"/training/groups/count", {"0"}},
      {"/training/groups/interval", {"0"}},
      {"/training/groups/exchange", {"\"masters\""}},
      {"/training/groups/weighting", {"\"samples\""}},
      {"/training/groups/outer/kind", {"\"adamw\""}},
      {"/training/pipeline/stages", {"0"}},
      {"/training/pipeline/schedule", {"\"zero_bubble\""}}};
  for (const auto& [pointer, values] : wrong) {
    for (const std::string& value : values)
      EXPECT_NE(refusal(pointer, value), "") << pointer << " " << value;
  }
}

TEST(JobSpec, RejectsInvalidSpecsWhenWriting) {
  JobSpec spec = sample_spec();
  spec.training.learning_rate = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(message_of(ErrorKind::kCorrupt, [&] { format_job_spec(spec); }),
              HasSubstr("learning_rate"));
  spec = sample_spec();
  spec.key.facility = "Alba";
  EXPECT_THAT(message_of(ErrorKind::kCorrupt, [&] { format_job_spec(spec); }),
              HasSubstr("facility"));
  spec = sample_spec();
  spec.update_path = "\xff";
  EXPECT_THAT(message_of(ErrorKind::kCorrupt, [&] { format_job_spec(spec); }), HasSubstr("UTF-8"));
}

TEST(JobSpec, RejectsHostileTexts) {
  for (const std::string& text :
       {std::string(), std::string("[]"), std::string("null"), std::string(100'000, '['),
        std::string(2u << 20, ' '), std::string("{\"version\":1,\"version\":1}")}) {
    EXPECT_THAT(message_of(ErrorKind::kCorrupt, [&] { parse_job_spec(text, "job.json"); }),
                HasSubstr("job.json"));
  }
}

TEST(JobKey, Name) {
  JobKey key = sample_spec().key;
  EXPECT_EQ(key.name(), "xffl-llama-it-cs-0003-r0002-alba-a1");
  key.round = 12345;
  EXPECT_EQ(key.name(), "xffl-llama-it-cs-0003-r12345-alba-a1");
}

TEST(JobSpec, NamesOfEnumerators) {
  EXPECT_EQ(to_string(FloatType::kBfloat16), "bf16");
  EXPECT_EQ(parse_enum<FloatType>("fp32"), FloatType::kFloat32);
  EXPECT_EQ(parse_enum<FloatType>("FP32"), std::nullopt);
  EXPECT_EQ(parse_enum<UpdateKind>("weights"), UpdateKind::kWeights);
  EXPECT_EQ(parse_enum<ScheduleKind>("linear"), ScheduleKind::kLinear);
}

TEST(TrainingFields, OnlyThoseWithoutAnEffectOnTheModelMayChangeWithinARun) {
  std::vector<std::string_view> names;
  for (const Field& field : training_fields().yaml)
    if (field.operational) names.push_back(field.name);
  EXPECT_THAT(names, testing::UnorderedElementsAre(
                         "sharding", "shard_group_size", "recompute", "attention", "offload",
                         "validation_samples", "validation_batch_size", "checkpoint_interval",
                         "keep_checkpoints", "deterministic", "pipeline"));
}

TEST(NumMicroBatches, CountsThePartialOne) {
  TrainingSpec training;
  training.batch_size = 10;
  training.micro_batch_size = 4;
  EXPECT_EQ(num_micro_batches(training, 1), 3);
  EXPECT_EQ(num_micro_batches(training, 2), 2);
  EXPECT_EQ(num_micro_batches(training, 3), 1) << "a rank has at most 4 sequences";
  EXPECT_EQ(num_micro_batches(training, 20), 1);
}

}  // namespace
}  // namespace xffl::job
