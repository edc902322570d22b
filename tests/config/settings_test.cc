#include "xffl/config/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "xffl/base/error.h"
#include "xffl/config/load.h"

namespace xffl::config {
namespace {

using testing::HasSubstr;

std::vector<Setting> settings(const std::vector<std::string>& texts) {
  std::vector<Setting> all;
  for (const std::string& text : texts) all.push_back(parse_setting(text));
  return all;
}

std::string refusal(const std::vector<std::string>& texts) {
  try {
    return "no error: " + format_settings(settings(texts));
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
}

TEST(Settings, BecomeAnExperimentInTheTablesOrder) {
  const std::string yaml = format_settings(settings(
      {"facilities.alba.data.validation.it.v2=val.tokens",
       "facilities.alba.data.train=[/x.tokens, a b]", "training.learning_rate=1e-4",
       "training.steps_per_round=40", "model=models/it's: #1", "project=p", "policy.deadline=24h",
       "policy.on_missing=skip", "facilities.alba.environment={A: \"x = y\"}", "project=q"}));
  const Experiment experiment = parse_experiment(yaml, "xffl.yaml", "/p");
  EXPECT_EQ(experiment.project.str(), "q");
  EXPECT_EQ(experiment.model, "/p/models/it's: #1");
  EXPECT_EQ(experiment.policy.deadline, std::chrono::hours(24));
  const Facility& alba = experiment.facilities.at(0);
  EXPECT_EQ(alba.training.learning_rate, 1e-4);
  EXPECT_THAT(alba.train_data, testing::ElementsAre("/x.tokens", "/p/a b"));
  EXPECT_EQ(alba.validation.at(0).name, "it.v2");
  EXPECT_THAT(alba.environment, testing::ElementsAre("export A='x = y'"));
  EXPECT_LT(yaml.find("project:"), yaml.find("model:"));
  EXPECT_LT(yaml.find("steps_per_round:"), yaml.find("learning_rate:"));
  EXPECT_LT(yaml.find("policy:"), yaml.find("facilities:"));
}

TEST(Settings, InvalidOnesAreRejected) {
  for (const char* bad : {"x", "=1", "a=", "a..b=1", ".a=1", "a.=1", ""})
    EXPECT_THROW(parse_setting(bad), Error) << bad;
  EXPECT_THAT(refusal({"project=a", "project.b=c"}), HasSubstr("'project' has a value already"));
  EXPECT_THAT(refusal({"training.seed=1", "training=x"}),
              HasSubstr("keys below it are set already"));
  EXPECT_THAT(refusal({"training=[1"}), HasSubstr("not YAML"));
  EXPECT_THAT(refusal({"training={a: 1}\nx: y"}), HasSubstr("not one YAML value"));
}

TEST(Settings, CannotSmuggleKeysIn) {
  for (const char* value : {"a\nrounds: 9", "a # b", "a: b", "*x", "!!x", "- a"}) {
    const std::string yaml = format_settings({{"project", value}});
    try {
      parse_experiment(yaml, "f", "/p");
      FAIL() << yaml;
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()).find("duplicate"), std::string::npos);
      EXPECT_EQ(yaml.find("\nrounds"), std::string::npos);
    }
  }
}

TEST(Settings, AreCheckedWithoutMissingKeys) {
  EXPECT_EQ(check_settings(settings({"project=p"}), "/p"), "");
  EXPECT_EQ(check_settings({{"facilities.a", ""}}, "/p"), "");
  EXPECT_THAT(check_settings(settings({"project=p", "rounds=x"}), "/p"),
              testing::StartsWith("'rounds' should be an integer"));
  EXPECT_THAT(check_settings(settings({"trainin.seed=1"}), "/p"),
              HasSubstr("did you mean 'training'?"));
  EXPECT_THAT(check_settings(settings({"training=[1"}), "/p"), HasSubstr("not YAML"));
}

}  // namespace
}  // namespace xffl::config
