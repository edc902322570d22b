#include <set>

#include "support/temp_dir.h"
#include "support/thrown.h"
#include "texts.h"
#include "xffl/base/file.h"

namespace xffl::config {
namespace {

using test::error_of;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kSmall = R"(project: bilingual
model: models/small
rounds: 3
training:
  steps_per_round: 40
  learning_rate: 8e-4
  schedule: {kind: cosine, warmup_steps: 10, min_ratio: 0.1}
facilities:
  brno:
    data: {train: data/cs.tokens}
  alba:
    workdir: /scratch/me/xffl
    world_size: 2
    training: {learning_rate: 1e-4}
    data:
      train: [data/it.tokens, /data/more.tokens]
      validation: {it: data/it-val.tokens, cs: ../cs-val.tokens}
)";

/// kSmall with its first `from` replaced.
std::string small_with(const std::string& from, const std::string& to) {
  return with(kSmall, from, to);
}

TEST(ParseExperiment, FillsInDefaultsOverridesAndPaths) {
  const Experiment experiment = parse(kSmall);
  EXPECT_EQ(experiment.project.str(), "bilingual");
  EXPECT_EQ(experiment.project_folder, "/project");
  EXPECT_EQ(experiment.model, "/project/models/small");
  EXPECT_EQ(experiment.rounds, 3);
  EXPECT_EQ(experiment.aggregation, Aggregation{});
  EXPECT_EQ(experiment.policy, RoundPolicy{});
  ASSERT_EQ(experiment.facilities.size(), 2u);
  const Facility& alba = experiment.facilities[0];
  const Facility& brno = experiment.facilities[1];
  EXPECT_EQ(alba.name.str(), "alba");
  EXPECT_EQ(alba.workdir.str(), "/scratch/me/xffl");
  EXPECT_EQ(brno.workdir.str(), "/project/work/brno");
  EXPECT_EQ(alba.world_size, 2);
  EXPECT_THAT(alba.train_data, ElementsAre("/project/data/it.tokens", "/data/more.tokens"));
  EXPECT_THAT(brno.train_data, ElementsAre("/project/data/cs.tokens"));
  EXPECT_THAT(alba.validation, ElementsAre(job::ValidationSet{"it", "/project/data/it-val.tokens"},
                                           job::ValidationSet{"cs", "/cs-val.tokens"}));
  EXPECT_EQ(alba.training.learning_rate, 1e-4);
  EXPECT_EQ(brno.training.learning_rate, 8e-4);
  for (const Facility& facility : experiment.facilities) {
    EXPECT_EQ(facility.training.steps, 40);
    EXPECT_EQ(facility.training.schedule.total_steps, 120);
    EXPECT_EQ(facility.training.schedule.warmup_steps, 10);
    EXPECT_EQ(facility.training.schedule.min_ratio, 0.1);
  }
}

// Text instead of shards: the folder of its shards is named by the options.
TEST(ParseExperiment, TextOfAFacilityNamesItsShards) {
  const auto with_data = [](const std::string& data) {
    return parse(small_with("data: {train: data/cs.tokens}", "data: " + data)).facilities[1];
  };
  const Facility brno = with_data("{text: [cs/*.txt, /more], template: 'A: {text}', pack: false}");
  EXPECT_THAT(brno.text.files, ElementsAre("/project/cs/*.txt", "/more"));
  EXPECT_EQ(brno.text.prompt, "A: {text}");
  EXPECT_FALSE(brno.text.pack);
  EXPECT_THAT(brno.prepared.str(), testing::MatchesRegex("/project/work/brno/xffl.data/"
                                                         "bilingual.brno-[0-9a-f]{8}"));
  EXPECT_THAT(brno.train_data, ElementsAre((brno.prepared / "train.tokens").str()));
  EXPECT_THAT(brno.validation,
              ElementsAre(job::ValidationSet{"brno", (brno.prepared / "validation.tokens").str()}));
  std::set<std::string> folders{brno.prepared.str()};
  for (const char* options :
       {"", "template: 'B: {text}'", "document: line", "text_field: t", "prompt_field: p",
        "prompt_field: p, mask_prompt: true", "pack: false", "sequence_length: 8",
        "validation_fraction: 0", "format: parquet", "format: ids", "format: bin",
        "format: bin, id_type: int32", "format: bin, end_id: 2",
        "format: chat, chat_template: llama-3", "format: chat, chat_template: chatml",
        "format: chat, chat_template: llama-3, messages_field: m"})
    EXPECT_TRUE(
        folders.insert(with_data(std::string("{text: cs/*.txt, ") + options + "}").prepared.str())
            .second)
        << options;
  for (const char* files : {"cs/*.md", "[cs/*.txt, /more]", "[/more, cs/*.txt]", "[cs/*.txt/more]"})
    EXPECT_TRUE(
        folders.insert(with_data(std::string("{text: ") + files + "}").prepared.str()).second)
        << files;
  EXPECT_TRUE(with_data("{text: cs/*.txt, validation_fraction: 0}").validation.empty());
}

TEST(ParseExperiment, TextThatDoesNotFitIsRefused) {
  const auto problem = [](const std::string& data) {
    return problems(small_with("data: {train: data/cs.tokens}", "data: " + data));
  };
  EXPECT_THAT(problem("{text: a, train: b}"),
              HasSubstr("'facilities.brno.data.train' has a meaning only with shards"));
  EXPECT_THAT(problem("{validation: {}}"),
              HasSubstr("missing required key 'facilities.brno.data.train'"));
  EXPECT_THAT(problem("{train: a, pack: false}"),
              HasSubstr("'facilities.brno.data.pack' has a meaning only with data.text"));
  EXPECT_THAT(problem("{text: a, template: b}"), HasSubstr("should contain {text}, found 'b'"));
  EXPECT_THAT(problem("{text: a, mask_prompt: true}"),
              HasSubstr("needs a template or a prompt_field"));
  EXPECT_THAT(problem("{text: a, format: csv}"), HasSubstr("auto"));
  EXPECT_THAT(problem("{text: a, format: chat}"), HasSubstr("'format: chat' needs chat_template"));
  EXPECT_THAT(problem("{text: a, chat_template: chatml}"),
              HasSubstr("data.chat_template' has a meaning only with format: chat"));
  EXPECT_THAT(problem("{text: a, format: jsonl, end_id: 2}"),
              HasSubstr("data.end_id' has a meaning only with format: bin"));
  EXPECT_THAT(problem("{text: a, format: chat, chat_template: chatml, template: '{text}'}"),
              HasSubstr("'template' has no meaning with format: chat"));
  EXPECT_THAT(problem("{text: a, format: ids, mask_prompt: true, prompt_field: p}"),
              AllOf(HasSubstr("'mask_prompt' has no meaning with format: ids"),
                    HasSubstr("'prompt_field' has no meaning with format: ids")));
  EXPECT_THAT(problem("{text: a, format: bin, template: '{text}'}"),
              HasSubstr("'template' has no meaning with format: bin"));
  EXPECT_THAT(problem("{train: a, format: ids}"),
              HasSubstr("'facilities.brno.data.format' has a meaning only with data.text"));
  EXPECT_THAT(problem("{text: a, validation: {brno: v}}"),
              HasSubstr("'brno' is the name of the set"));
}

TEST(ParseExperiment, TheBundleIsInTheWorkFolder) {
  const Facility alba =
      parse(small_with("world_size: 2", "world_size: 2\n    trainer: bundle")).facilities[0];
  EXPECT_EQ(alba.trainer_program, "/scratch/me/xffl/xffl.programs/current/bin/xffl-train");
}

TEST(ParseExperiment, ReadsEveryKindOfTrainerAndEnvironment) {
  const Experiment experiment = parse(R"(
project: p
model: /m
training: {steps_per_round: 1}
facilities:
  a: {trainer: builtin, environment: ["module load cuda", "ulimit -n 4096"], data: {train: t}}
  b: {trainer: {program: bin/xffl-train}, environment: {HF_HOME: /x y, N: 3}, data: {train: t}}
  c: {trainer: {command: [python3, ./train.py, ../lib, --x, "a b"]}, data: {train: t}}
)");
  EXPECT_TRUE(experiment.facilities[0].trainer_command.empty());
  EXPECT_TRUE(experiment.facilities[0].trainer_program.empty());
  EXPECT_THAT(experiment.facilities[0].environment,
              ElementsAre("module load cuda", "ulimit -n 4096"));
  EXPECT_EQ(experiment.facilities[1].trainer_program, "/project/bin/xffl-train");
  EXPECT_THAT(experiment.facilities[1].environment,
              ElementsAre("export HF_HOME='/x y'", "export N=3"));
  EXPECT_THAT(experiment.facilities[2].trainer_command,
              ElementsAre("python3", "/project/train.py", "/lib", "--x", "a b"));
}

TEST(ParseExperiment, ReadsPolicyAndAggregation) {
  const Experiment experiment = parse(small_with("rounds: 3", R"(rounds: 3
aggregation: {weights: equal, update: weights, update_dtype: fp16, publish_dtype: fp32, max_share: 1}
policy: {on_missing: skip, quorum: 1, quorum_grace: 45m, deadline: 24h, max_attempts: 3, poll_interval: 250ms,
         keep_rounds: 5})"));
  EXPECT_EQ(experiment.aggregation,
            (Aggregation{WeightKind::kEqual, job::UpdateKind::kWeights, job::FloatType::kFloat16,
                         job::FloatType::kFloat32, 1}));
  EXPECT_EQ(experiment.policy,
            (RoundPolicy{OnMissing::kSkip, 1, std::chrono::minutes(45), std::chrono::hours(24), 3,
                         std::chrono::milliseconds(250), 5}));
}

TEST(ParseExperiment, ReadsBudgets) {
  const auto budgets = [](const std::string& facility, const std::string& policy) {
    return parse(
        "project: p\nmodel: /m\ntraining: {steps_per_round: 1}\n" + policy +
        "facilities:\n  a: {scheduler: slurm, slurm: {time: 2h}, " + facility +
        "data: {train: t}}\n  b: {scheduler: slurm, slurm: {time: 1h}, data: {train: t}}\n");
  };
  const Experiment none = budgets("", "");
  EXPECT_EQ(none.policy.budget, Budget{});
  EXPECT_TRUE(none.facilities[0].may_requeue);
  const Experiment one = budgets("budget: {node_hours: 100, warn_at: 0.5}, ", "");
  EXPECT_EQ(one.facilities[0].budget, (Budget{100, 0.5}));
  EXPECT_FALSE(one.facilities[0].may_requeue);
  EXPECT_TRUE(one.facilities[1].may_requeue);
  const Experiment all = budgets("", "policy: {budget: {node_hours: 2.5}}\n");
  EXPECT_EQ(all.policy.budget, (Budget{2.5, 0.8}));
  EXPECT_FALSE(all.facilities[0].may_requeue);
  EXPECT_FALSE(all.facilities[1].may_requeue);
}

TEST(ParseExperiment, ReadsStopRules) {
  const Experiment experiment = parse(small_with(
      "rounds: 3",
      "rounds: 3\npolicy: {stop_when: {no_better_for: 4, loss_below: 1.5, gain_per_node_hour: "
      "1e-3, wall_clock: 2d}}"));
  EXPECT_EQ(experiment.policy.stop_when, (StopRules{4, 1.5, 1e-3, std::chrono::hours(48)}));
}

TEST(ParseExperiment, RulesOnTheLossNeedAValidationSet) {
  const auto with = [](const std::string& rules) {
    return "project: p\nmodel: /m\ntraining: {steps_per_round: 1}\npolicy: {stop_when: {" + rules +
           "}}\nfacilities: {a: {data: {train: t}}}\n";
  };
  for (const char* rule : {"no_better_for: 2", "loss_below: 2", "gain_per_node_hour: 0.1"})
    EXPECT_THAT(problems(with(rule)),
                HasSubstr("error: the rules on the loss need a validation set"))
        << rule;
  EXPECT_EQ(parse(with("wall_clock: 2d")).policy.stop_when.wall_clock, std::chrono::hours(48));
}

TEST(ParseExperiment, ABudgetNeedsJobsWithAWalltime) {
  EXPECT_THAT(problems(small_with("rounds: 3", "rounds: 3\npolicy: {budget: {node_hours: 9}}")),
              AllOf(HasSubstr("error: a budget of node-hours needs jobs with a walltime"),
                    HasSubstr("(scheduler: process)")));
}

TEST(ParseExperiment, ReadsTheLimitsOfTheCoordinatorsDisk) {
  const auto policy = [](const std::string& keys) {
    return parse(small_with("rounds: 3", "rounds: 3\npolicy: {" + keys + "}")).policy;
  };
  EXPECT_EQ(policy("keep_rounds: 2").keep_updates, 0);
  EXPECT_EQ(policy("keep_rounds: 2").keep_models, 0);
  EXPECT_EQ(policy("keep_updates: 7").keep_updates, 7);
  EXPECT_EQ(policy("keep_updates: 7").keep_models, 0);
  EXPECT_EQ(policy("keep_models: 9").keep_models, 9);
  EXPECT_EQ(policy("keep_models: 9").keep_updates, 0);
}

TEST(ParseExperiment, AcceptsADeadlineWithOnMissingWait) {
  const RoundPolicy policy =
      parse(small_with("rounds: 3", "policy: {on_missing: wait, deadline: 24h}")).policy;
  EXPECT_EQ(policy.on_missing, OnMissing::kWait);
  EXPECT_EQ(policy.deadline, std::chrono::hours(24));
}

TEST(ParseExperiment, ATypoIsReportedWithItsPlaceAndTheLikelyKey) {
  EXPECT_EQ(problems(small_with("learning_rate: 8e-4", "learning_rat: 8e-4")),
            "xffl.yaml:6:3: error: unknown key 'learning_rat' in 'training': did you mean "
            "'learning_rate'?");
  EXPECT_THAT(problems(small_with("world_size", "worldsize")),
              HasSubstr("xffl.yaml:13:5: error: unknown key 'worldsize' in 'facilities.alba': did "
                        "you mean 'world_size'?"));
  // The missing required key is the misspelt one: one problem.
  EXPECT_EQ(problems(small_with("model:", "modle:")),
            "xffl.yaml:2:1: error: unknown key 'modle': did you mean 'model'?");
}

TEST(ParseExperiment, AMisplacedKeyIsReportedWithItsSection) {
  EXPECT_THAT(
      problems(small_with("rounds: 3", "rounds: 3\nlearning_rate: 1e-3")),
      HasSubstr("xffl.yaml:4:1: error: unknown key 'learning_rate': it belongs in 'training'"));
  EXPECT_THAT(problems(small_with("workdir: /scratch/me/xffl", "rounds: 3")),
              HasSubstr("it belongs in the file's top level"));
  EXPECT_THAT(problems(small_with("workdir: /scratch/me/xffl", "train: x")),
              HasSubstr("it belongs in 'facilities.<name>.data'"));
}

TEST(ParseExperiment, AllProblemsAreReportedAtOnceInOrder) {
  const std::string all = problems(R"(project: Bad Name
model: models/small
rounds: many
rounds: 2
training: {steps_per_round: 010, precision: fp23}
facilities:
  alba:
    acces: local
    world_size: 0
)");
  EXPECT_THAT(all, HasSubstr("xffl.yaml:1:10: error: 'Bad Name' cannot be a project name"));
  EXPECT_THAT(all, HasSubstr("xffl.yaml:3:9: error: 'rounds' should be an integer from 1 to "
                             "1000000, found 'many'"));
  EXPECT_THAT(all,
              HasSubstr("xffl.yaml:4:1: error: duplicate key 'rounds': it is already on line 3"));
  EXPECT_THAT(all,
              HasSubstr("xffl.yaml:5:29: error: 'training.steps_per_round' should be an integer "
                        "from 1 to 1000000000, found '010': write 10 without leading zeros"));
  EXPECT_THAT(all,
              HasSubstr("xffl.yaml:5:45: error: 'training.precision' should be fp32, bf16 or fp16, "
                        "found 'fp23': did you mean 'fp32'?"));
  EXPECT_THAT(all, HasSubstr("xffl.yaml:7:3: error: missing required key 'facilities.alba.data'"));
  EXPECT_THAT(all, HasSubstr("xffl.yaml:8:5: error: unknown key 'acces' in 'facilities.alba': did "
                             "you mean 'access'?"));
  EXPECT_THAT(all, HasSubstr("xffl.yaml:9:17: error: 'facilities.alba.world_size' should be an "
                             "integer from 1 to 1000000, found '0'"));
  EXPECT_EQ(std::count(all.begin(), all.end(), '\n'), 7) << all;
}

TEST(ParseExperiment, MissingRequiredKeysAreNamed) {
  const std::string all = problems("rounds: 2\n");
  for (const char* key : {"project", "model", "facilities"})
    EXPECT_THAT(all, HasSubstr(std::string("missing required key '") + key + "'"));
  EXPECT_THAT(problems(""), HasSubstr("missing required key 'project'"));
  EXPECT_THAT(problems(small_with("  steps_per_round: 40\n", "")),
              HasSubstr("missing required key 'training.steps_per_round'"));
  EXPECT_THAT(problems(small_with("train: [data/it.tokens, /data/more.tokens]", "train:")),
              HasSubstr("xffl.yaml:16:7: error: 'facilities.alba.data.train' has no value"));
}

TEST(ParseExperiment, FacilitiesMayHaveStepsOfTheirOwn) {
  const Experiment experiment = parse(R"(
project: p
model: /m
rounds: 2
facilities:
  a: {training: {steps_per_round: 5}, data: {train: t}}
  b: {training: {steps_per_round: 7}, data: {train: t}}
)");
  EXPECT_EQ(experiment.facilities[0].training.schedule.total_steps, 10);
  EXPECT_EQ(experiment.facilities[1].training.schedule.total_steps, 14);
}

TEST(ParseExperiment, AWarmupMayTakeSeveralRounds) {
  EXPECT_EQ(problems(small_with("warmup_steps: 10", "warmup_steps: 120")), "") << "3 * 40 steps";
}

TEST(ParseExperiment, ARoundMayHaveEpochs) {
  const std::string text = R"(
project: p
model: /m
rounds: 4
training: {epochs_per_round: 0.5}
facilities:
  a: {data: {train: t}}
  b: {training: {epochs_per_round: 0, steps_per_round: 7}, data: {train: t}}
)";
  const Experiment experiment = parse(text);
  const job::TrainingSpec &a = experiment.facilities[0].training,
                          &b = experiment.facilities[1].training;
  EXPECT_EQ(std::tuple(a.epochs, a.steps, a.total_rounds, a.schedule.total_steps),
            std::tuple(0.5, 0, 4, 0));
  EXPECT_EQ(std::tuple(b.epochs, b.steps, b.total_rounds, b.schedule.total_steps),
            std::tuple(0.0, 7, 0, 28));
  const std::string resolved = format_experiment(experiment);
  EXPECT_EQ(format_experiment(parse(resolved)), resolved);
  EXPECT_THAT(problems(with(text, "epochs_per_round: 0,", "")),
              HasSubstr("'facilities.b.training.steps_per_round' has a meaning only with "
                        "epochs_per_round 0"));
}

TEST(ParseExperiment, OwnEpochsReplaceSharedSteps) {
  const Experiment experiment = parse(R"(
project: p
model: /m
training: {steps_per_round: 5}
facilities:
  a: {training: {epochs_per_round: 2}, data: {train: t}}
)");
  EXPECT_EQ(experiment.facilities[0].training.steps, 0);
  EXPECT_EQ(experiment.facilities[0].training.epochs, 2);
}

class WrongValue : public testing::TestWithParam<Wrong> {};

TEST_P(WrongValue, IsRejectedWithACorrection) {
  const auto& [from, to, message] = GetParam();
  EXPECT_THAT(problems(small_with(from, to)), HasSubstr(message));
}

INSTANTIATE_TEST_SUITE_P(
    All, WrongValue,
    testing::Values(
        Wrong{"rounds: 3", "rounds: \"3\"",
              "3:9: error: 'rounds' should be an integer from 1 to "
              "1000000, found the quoted text '3': write it without quotes"},
        Wrong{"rounds: 3", "rounds: 3.0", "found '3.0'"},
        Wrong{"rounds: 3", "rounds: 0x10", "write it in decimal digits"},
        Wrong{"rounds: 3", "rounds: 1_000", "write 1000"},
        Wrong{"rounds: 3", "rounds: +3", "found '+3'"},
        Wrong{"rounds: 3", "rounds: no", "found 'no'"},
        Wrong{"rounds: 3", "rounds: [3]", "found a list"},
        Wrong{"rounds: 3", "rounds: {n: 3}", "found a mapping"},
        Wrong{"rounds: 3", "rounds: 99999999999999999999", "found '99999999999999999999'"},
        Wrong{"rounds: 3", "rounds: ~", "has no value"},
        Wrong{"learning_rate: 8e-4", "learning_rate: .inf", "should be a number from 0 to 1000"},
        Wrong{"learning_rate: 8e-4", "learning_rate: nan", "found 'nan'"},
        Wrong{"learning_rate: 8e-4", "learning_rate: -1e-3", "found '-1e-3'"},
        Wrong{"learning_rate: 8e-4", "beta1: 1", "from 0 to below 1, found '1'"},
        Wrong{"kind: cosine", "kind: cosin", "did you mean 'cosine'?"},
        Wrong{"min_ratio: 0.1", "min_ratio: 1.5", "from 0 to 1, found '1.5'"},
        Wrong{"rounds: 3", "policy: {deadline: 24}", "found '24': add the unit"},
        Wrong{"rounds: 3", "policy: {deadline: 1.5h}", "a duration such as"},
        Wrong{"rounds: 3", "policy: {deadline: 1500ms}", "whole seconds"},
        Wrong{"rounds: 3", "policy: {deadline: 24h}",
              "xffl.yaml:3:20: error: 'policy.deadline' needs 'policy.on_missing': skip continues"},
        Wrong{"rounds: 3", "policy: {poll_interval: 1ms}", "from 10ms to 1h"},
        Wrong{"rounds: 3", "policy: {quorum: 3}",
              "'policy.quorum' is 3, but there are 2 facilities"},
        Wrong{"rounds: 3", "aggregation: {weights: token}", "did you mean 'tokens'?"},
        Wrong{"rounds: 3", "aggregation: {max_share: 0.4}",
              "'aggregation.max_share' is 0.4, but a round may have 2 updates, of which one has a "
              "share of 0.5 or more"},
        Wrong{"rounds: 3", "aggregation: {max_share: 0.6}\npolicy: {on_missing: skip}",
              "a round may have 1 update, of which one has a share of 1 or more"},
        Wrong{"rounds: 3", "aggregation: {max_share: 1.5}", "from 0 to 1, found '1.5'"},
        Wrong{"rounds: 3", "aggregation: [tokens]", "'aggregation' should be a mapping"},
        Wrong{"training: {learning_rate: 1e-4}", "trainer: python3 train.py",
              "for a program of your own write {command: [...]}"},
        Wrong{"training: {learning_rate: 1e-4}", "trainer: {command: python3 train.py}",
              "should be a list of words such as [python3, ./train.py]"},
        Wrong{"training: {learning_rate: 1e-4}", "trainer: {comand: [x]}",
              "did you mean 'command'?"},
        Wrong{"training: {learning_rate: 1e-4}", "trainer: {command: [-x]}",
              "should start with a program"},
        Wrong{"training: {learning_rate: 1e-4}", "environment: {A-B: c}",
              "'A-B' cannot be the name of an environment variable"},
        Wrong{"training: {learning_rate: 1e-4}", "environment: [\"a\\nb\"]", "line break"},
        Wrong{"training: {learning_rate: 1e-4}", "environment: [\"#SBATCH -A x\"]",
              "batch directive"},
        Wrong{"training: {learning_rate: 1e-4}", "environment: ['a\\']", "ends in a backslash"},
        Wrong{"training: {learning_rate: 1e-4}", "environment: module load x",
              "a list of shell lines"},
        Wrong{"/scratch/me/xffl", "~/xffl", "'~' is not expanded"},
        Wrong{"/scratch/me/xffl", "\"/a\\tb\"", "control character"},
        Wrong{"/scratch/me/xffl", "\"\"", "should be a path"},
        Wrong{"brno:", "Brno:", "'Brno' cannot be a facility name"},
        Wrong{"brno:", "null:", "expected a key before ':'"},
        Wrong{"world_size: 2", "world_size: 3",
              "13:17: error: 'batch_size' counts the sequences of all "
              "ranks and should be a multiple of 'world_size'"},
        Wrong{"training: {learning_rate: 1e-4}", "training: {pipeline: {stages: 3}}",
              "'groups.count' * 'pipeline.stages' is 3, which does not divide the 2 ranks"},
        Wrong{"training: {learning_rate: 1e-4}", "training: {lora: {target_modules: [lm_head]}}",
              "q_proj, k_proj"},
        Wrong{"training: {learning_rate: 1e-4}", "training: {groups: {outer: {momentum: 1}}}",
              "below 1"},
        Wrong{"training: {learning_rate: 1e-4}", "training: {freeze: 'a b'}", "a parameter's name"},
        Wrong{"warmup_steps: 10", "warmup_steps: 1000", "more than all steps"},
        Wrong{"steps_per_round: 40", "steps_per_round: 400000000",
              "rounds * steps_per_round is 400000000 * 3, at most 10^9 steps are allowed"},
        Wrong{"train: data/cs.tokens", "train: []",
              "'facilities.brno.data.train' should be a path"},
        Wrong{"it: data/it-val.tokens", "i t: data/it-val.tokens", "cannot name a validation set"},
        Wrong{"{it: data/it-val.tokens, cs: ../cs-val.tokens}", "data/it-val.tokens",
              "should be a mapping of names to paths"}));

// A blank ahead of PBS's mark hides no directive from qsub.
TEST(ParseExperiment, ALineOfEnvironmentIsNoIndentedDirective) {
  EXPECT_THAT(problems(small_with("training: {learning_rate: 1e-4}",
                                  "environment: [\"  #PBS -l select=9\"]")),
              HasSubstr("batch directive"));
}

TEST(ParseExperiment, HooksNeedACommand) {
  EXPECT_THAT(problems(small_with("rounds: 3", "rounds: 3\nhooks: {on: [run_stopped]}")),
              HasSubstr("'hooks' needs command"));
}

// A job of processes would run without the image or the modules.
TEST(ParseExperiment, AnImageAndModulesNeedAQueueManager) {
  for (const char* key : {"image: {file: /x.sif}", "modules: cuda/12.2", "login_shell: true"})
    EXPECT_THAT(problems(small_with("training: {learning_rate: 1e-4}", key)),
                HasSubstr("has a meaning only with scheduler: slurm"))
        << key;
}

TEST(ParseExperiment, TheSmallestRoundCanKeepTheLargestShare) {
  const auto with_policy = [](const std::string& policy) {
    return problems(
        small_with("rounds: 3", "aggregation: {max_share: 0.6}\npolicy: {" + policy + "}"));
  };
  EXPECT_EQ(with_policy("on_missing: skip, quorum: 2"), "");
  EXPECT_THAT(with_policy("quorum: 1"), HasSubstr("a round may have 1 update"))
      << "without on_missing: skip, too";
}

TEST(ParseExperiment, HostileTextIsShownEscapedAndCut) {
  const std::string all = problems("project: \"\\e[2J" + std::string(5000, 'x') + "\"\n");
  EXPECT_EQ(all.find('\x1b'), std::string::npos);
  EXPECT_LT(all.size(), 3000u);
}

TEST(ParseExperiment, AThousandProblemsAreCutShort) {
  std::string yaml = kSmall;
  for (int i = 0; i < 1000; ++i) yaml += "zzz" + std::to_string(i) + ": 1\n";
  EXPECT_THAT(problems(yaml), HasSubstr("... and 950 more"));
}

TEST(LoadExperiment, ReadsTheProjectsFile) {
  const test::TempDir project;
  write_file_atomic(project / "xffl.yaml", kSmall);
  EXPECT_EQ(load_experiment(project.path()).model, project / "models/small");
  EXPECT_EQ(load_experiment(project.path() / "").model, project / "models/small");
  write_file_atomic(project / "xffl.yaml", "rounds: x\n");
  const Error error = error_of([&] { load_experiment(project.path()); });
  EXPECT_EQ(error.kind(), ErrorKind::kConfig);
  EXPECT_THAT(error.what(), HasSubstr((project / "xffl.yaml").string() + ":1:9: error: "));
}

TEST(LoadExperiment, AMissingFileIsReportedWithTheCommandToCreateIt) {
  const test::TempDir project;
  const Error error = error_of([&] { load_experiment(project.path()); });
  EXPECT_EQ(error.kind(), ErrorKind::kNotFound);
  EXPECT_THAT(error.what(), HasSubstr("xffl config --project"));
}

TEST(LoadExperiment, AFileOfMoreThanOneMebibyteIsRejected) {
  const test::TempDir project;
  write_file_atomic(project / "xffl.yaml", "project: " + std::string(2 << 20, 'x'));
  const Error error = error_of([&] { load_experiment(project.path()); });
  EXPECT_EQ(error.kind(), ErrorKind::kConfig);
}

// The facility alba with environment lines whose value is `quotes` quotes.
std::string with_environment(const char* quote, int lines, size_t quotes) {
  const std::string value(quotes, *quote);
  const std::string around = *quote == '"' ? "'" : "\"";
  std::string environment = "environment: {";
  for (int i = 0; i < lines; ++i)
    environment += "A" + std::to_string(i) + ": " + around + value + around + ", ";
  return small_with("training: {learning_rate: 1e-4}", environment + "}");
}

TEST(ParseExperiment, ALineOfEnvironmentIsMeasuredAsTheShellReadsIt) {
  EXPECT_EQ(problems(with_environment("'", 1, 990)), "");
  EXPECT_THAT(problems(with_environment("'", 1, 1000)),
              HasSubstr("'facilities.alba.environment' has 4012 bytes, at most 4000 are allowed"));
}

TEST(LoadExperiment, TheCopyOfARunMayHaveMoreThanOneMebibyte) {
  const test::TempDir project;
  write_file_atomic(project / "xffl.yaml", with_environment("\"", 250, 3900));
  const Experiment experiment = load_experiment(project.path());
  const std::string copy = format_experiment(experiment);
  EXPECT_GT(copy.size(), size_t{1} << 20);
  EXPECT_EQ(parse_experiment(copy, "copy", project.path()), experiment);
}

TEST(LoadExperiment, RejectsAFileWhoseCopyCouldNotBeRead) {
  const test::TempDir project;
  write_file_atomic(project / "xffl.yaml", with_environment("'", 1000, 990));
  const Error error = error_of([&] { load_experiment(project.path()); });
  EXPECT_EQ(error.kind(), ErrorKind::kConfig);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("in the copy of " + (project / "xffl.yaml").string()),
                                  HasSubstr("config.resolved.yaml: error: the file has")));
}

TEST(Experiment, AnUnknownFacilityNamesTheKnownOnes) {
  const Experiment experiment = parse(kSmall);
  EXPECT_EQ(experiment.facility(FacilityName("brno")).name.str(), "brno");
  const Error error = error_of([&] { experiment.facility(FacilityName("cluj")); });
  EXPECT_EQ(error.kind(), ErrorKind::kNotFound);
  EXPECT_THAT(error.what(), HasSubstr("there are: alba, brno"));
}

TEST(FindMissing, NamesMissingFiles) {
  const test::TempDir project;
  write_file_atomic(project / "xffl.yaml", kSmall);
  std::string all;
  for (const std::string& one : find_missing(load_experiment(project.path()))) all += one + "\n";
  EXPECT_THAT(all, HasSubstr("model: there is no folder " + (project / "models/small").string()));
  EXPECT_THAT(all, HasSubstr("facilities.alba.data.train: there is no file /data/more.tokens"));
  EXPECT_THAT(all, HasSubstr("facilities.alba.data.validation.it: "));
  make_dirs(project / "models/small");
  make_dirs(project / "data");
  for (const char* file :
       {"models/small/config.json", "models/small/model.safetensors", "data/cs.tokens"})
    write_file_atomic(project / file, "x");
  all.clear();
  for (const std::string& one : find_missing(load_experiment(project.path()))) all += one + "\n";
  EXPECT_THAT(all, Not(HasSubstr("model:")));
  EXPECT_THAT(all, Not(HasSubstr("brno")));
}

TEST(FindMissing, NamesATrainerWithoutTheExecutePermission) {
  const test::TempDir project;
  write_file_atomic(project / "xffl.yaml",
                    small_with("world_size: 2", "world_size: 2\n    trainer: {program: train}"));
  const auto named =
      testing::Contains("facilities.alba.trainer.program: " + (project / "train").string() +
                        " is not a program that can be run");
  write_file_atomic(project / "train", "", 0600);
  EXPECT_THAT(find_missing(load_experiment(project.path())), named);
  write_file_atomic(project / "train", "", 0700);
  EXPECT_THAT(find_missing(load_experiment(project.path())), Not(named));
}

TEST(FindMissing, NamesTheMissingFileOfAnAdapter) {
  const test::TempDir adapter;
  write_file_atomic(adapter / "adapter_config.json", "{}");
  Experiment experiment = parse(kSmall);
  experiment.adapter = adapter.path();
  const std::vector<std::string> missing = find_missing(experiment);
  EXPECT_THAT(missing, testing::Contains("adapter: " + adapter.path().string() +
                                         " holds no adapter_model.safetensors"));
  EXPECT_THAT(missing, Not(testing::Contains(HasSubstr("adapter_config.json"))));
}

TEST(ParseExperiment, AdaptersAreTheSameAtAllFacilities) {
  const std::string lora = "  lora: {rank: 4, alpha: 8, target_modules: [v_proj, q_proj]}\n";
  const std::string all = small_with("  learning_rate: 8e-4\n", "  learning_rate: 8e-4\n" + lora);
  EXPECT_EQ(parse(all).facilities[1].training.lora.rank, 4);
  const std::string own = "training: {learning_rate: 1e-4, lora: ";
  const auto alba = [&](const std::string& text) {
    return problems(with(all, "training: {learning_rate: 1e-4", own + text));
  };
  EXPECT_EQ(alba("{dropout: 0.1, target_modules: [q_proj, v_proj]}"), "");
  EXPECT_THAT(alba("{rank: 8}"), HasSubstr("'lora' of 'brno' and 'alba' differ"));
  EXPECT_THAT(alba("{rank: 0}"), HasSubstr("'lora' of 'brno' and 'alba' differ"));
  EXPECT_THAT(alba("{alpha: 16}"), HasSubstr("'lora' of 'brno' and 'alba' differ"));
  EXPECT_THAT(alba("{rank_stabilized: true}"), HasSubstr("'lora' of 'brno' and 'alba' differ"));
  EXPECT_THAT(alba("{target_modules: [q_proj]}"), HasSubstr("should be the same at all"));
  EXPECT_THAT(alba("{weight_decomposed: true}"), HasSubstr("'lora' of 'brno' and 'alba' differ"));
  EXPECT_THAT(alba("{modules_to_save: [lm_head]}"),
              HasSubstr("'lora' of 'brno' and 'alba' differ"));
  EXPECT_THAT(problems(with(all, "alpha: 8", "alpha: 0")), HasSubstr("'lora.alpha' is 0"));
  EXPECT_THAT(problems(with(all, "[v_proj, q_proj]", "[]")),
              HasSubstr("'lora.target_modules' is empty"));
}

TEST(ParseExperiment, AStartingAdapterNeedsLora) {
  const std::string given = small_with("rounds:", "adapter: models/adapter\nrounds:");
  EXPECT_THAT(problems(given), HasSubstr("error: 'adapter' is given, but"));
  const std::string lora = "  lora: {rank: 4, alpha: 8, target_modules: [v_proj, q_proj]}\n";
  const Experiment experiment =
      parse(with(given, "  learning_rate: 8e-4\n", "  learning_rate: 8e-4\n" + lora));
  EXPECT_EQ(experiment.adapter, "/project/models/adapter");
  EXPECT_THAT(format_training_identity(experiment), HasSubstr("adapter: /project/models/adapter"));
  EXPECT_THAT(find_missing(experiment),
              testing::Contains(HasSubstr("adapter: /project/models/adapter")));
}

}  // namespace
}  // namespace xffl::config
