#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "xffl/config/load.h"

namespace xffl::config {
namespace {

Experiment parse(const std::string& yaml, const char* folder = "/p") {
  return parse_experiment(yaml, "xffl.yaml", folder);
}

constexpr const char* kEverything = R"yaml(
project: p
model: "models/a b: #c"
rounds: 7
training: {steps_per_round: 3, seed: 9223372036854775807, beta1: 0.1, epsilon: 1e-300, precision: bf16}
aggregation: {weights: samples, update: weights, update_dtype: fp32, publish_dtype: fp16}
policy: {on_missing: fail, quorum: 2, deadline: 36h, poll_interval: 1500ms}
facilities:
  z:
    template: templates/z.sh
    trainer: {command: [python3, "-c", "print('x: y')", ""]}
    environment: {A: "it's", B: "$(id)"}
    training: {steps_per_round: 5, schedule: {kind: linear}, learning_rate: 0.1}
    data: {train: [a, "b c"], validation: {it.v2: x, "0": y, "no": z}}
  a: {world_size: 4, trainer: {program: /x}, environment: ["a  b"], data: {train: t}}
)yaml";

TEST(FormatExperiment, IsReadBackToAnEqualExperiment) {
  const Experiment experiment = parse(kEverything);
  const std::string text = format_experiment(experiment);
  EXPECT_EQ(parse(text), experiment) << text;
  EXPECT_EQ(format_experiment(parse(text)), text);
}

TEST(FormatExperiment, SaysTheSameForFilesThatMeanTheSame) {
  const std::string one = R"(
project: p
model: /m
training: {steps_per_round: 4}
facilities:
  a: {data: {train: /t}}
  b: {data: {train: /t}}
)";
  const std::string other = R"(# a comment
facilities:
  b: {data: {train: [/t]}, training: {steps_per_round: 4}, workdir: /p/work/b}
  a: {data: {train: "/t"}, world_size: 1, training: {learning_rate: 1e-5}}
model: "/x/../m"
rounds: 1
training: {steps_per_round: 4}
project: p
)";
  EXPECT_EQ(format_experiment(parse(one)), format_experiment(parse(other)));
}

TEST(FormatExperiment, NamesEveryKey) {
  const std::string text = format_experiment(parse(kEverything));
  for (const char* key : {"rounds: 7", "weights: samples", "keep_rounds: 2", "deadline: 36h",
                          "poll_interval: 1500ms", "max_grad_norm: 1", "min_ratio: 0",
                          "validation_samples: 0", "access: local", "scheduler: process"})
    EXPECT_THAT(text, testing::HasSubstr(key));
}

}  // namespace
}  // namespace xffl::config
