// The keys of xffl.yaml that follow from the rows of aggregate::server_optimizers().
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "section_reader.h"
#include "xffl/base/error.h"
#include "xffl/config/load.h"

namespace xffl::config {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr aggregate::ServerSetting kSettings[] = {
    {.name = "learning_rate", .help = "of the step", .default_value = 0.1, .max = 10},
    {.name = "momentum", .help = "of the velocity", .default_value = 0.9, .below_max = true}};
constexpr aggregate::ServerOptimizer kRows[] = {
    {.name = "fedavg", .help = "adds the mean"},
    {.name = "fedavgm", .help = "adds a velocity", .settings = kSettings}};

class ServerOptimizerKeys : public testing::Test {
 protected:
  Aggregation read(const std::string& yaml) {
    problems_.clear();
    Aggregation aggregation;
    SectionReader("/p", problems_)
        .read(read_yaml(yaml, problems_), keys_, &aggregation, "aggregation");
    return aggregation;
  }
  std::string problem() {
    return problems_.size() == 1 ? problems_.front().message : "none or many";
  }

  const FieldTable keys_ = aggregation_keys(kRows);
  std::vector<Problem> problems_;
};

TEST_F(ServerOptimizerKeys, AnOptimizerHasASectionWithItsSettings) {
  const Aggregation defaults = read("server_optimizer: fedavgm\n");
  EXPECT_EQ(defaults.server_optimizer, "fedavgm");
  EXPECT_THAT(defaults.optimizer_settings, ElementsAre(0.1, 0.9));
  const Aggregation set = read("fedavgm: {momentum: 0.5}\nserver_optimizer: fedavgm\n");
  EXPECT_THAT(set.optimizer_settings, ElementsAre(0.1, 0.5));
  EXPECT_TRUE(problems_.empty());
  const Field& section = *keys_.find("fedavgm");
  EXPECT_FALSE(section.is_set(&defaults)) << "defaults are left out of the run's configuration";
  EXPECT_TRUE(section.is_set(&set));
  const Field& momentum = *section.table->find("momentum");
  EXPECT_EQ(std::get<double>(momentum.get(&set.optimizer_settings)), 0.5);
  EXPECT_THAT(read("weights: equal\n").optimizer_settings, testing::IsEmpty());
}

TEST_F(ServerOptimizerKeys, ChecksFollowFromTheRow) {
  read("{server_optimizer: fedavgm, fedavgm: {learning_rate: 11}}");
  EXPECT_THAT(problem(), HasSubstr("a number from 0 to 10"));
  read("{server_optimizer: fedavgm, fedavgm: {momentum: 1}}");
  EXPECT_THAT(problem(), HasSubstr("a number from 0 to below 1"));
  read("{server_optimizer: fedavg, fedavgm: {momentum: 0.5}}");
  EXPECT_THAT(problem(), HasSubstr("'aggregation.fedavgm' has a meaning only with "
                                   "server_optimizer: fedavgm"));
  read("server_optimizer: fedprox");
  EXPECT_THAT(problem(), HasSubstr("fedavg or fedavgm"));
}

TEST_F(ServerOptimizerKeys, DocumentationFollowsFromTheRows) {
  EXPECT_THAT(std::string(keys_.find("server_optimizer")->help),
              HasSubstr("; fedavg adds the mean; fedavgm adds a velocity"));
  EXPECT_EQ(keys_.find("fedavg"), nullptr) << "no settings, no section";
  const Field& rate = *keys_.find("fedavgm")->table->find("learning_rate");
  EXPECT_EQ(value_text(rate, rate.default_value), "0.1");
}

TEST_F(ServerOptimizerKeys, TheDefaultLeavesTheTrainingIdentityOfEarlierRunsAsItWas) {
  const std::string yaml =
      "project: p\nmodel: /m\ntraining: {steps_per_round: 1}\nfacilities: {a: {data: {train: "
      "/t}}}\n";
  const auto identity = [](const std::string& text) {
    return format_training_identity(parse_experiment(text, "xffl.yaml", "/p"));
  };
  EXPECT_THAT(identity(yaml), testing::Not(HasSubstr("server_optimizer")));
  EXPECT_EQ(identity(yaml + "aggregation: {server_optimizer: fedavg}\n"), identity(yaml));
  EXPECT_THAT(identity(yaml), testing::Not(HasSubstr("max_share")));
  EXPECT_THAT(identity(yaml + "aggregation: {max_share: 1}\n"), HasSubstr("max_share: 1"));
}

}  // namespace
}  // namespace xffl::config
