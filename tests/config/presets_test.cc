#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "xffl/base/error.h"
#include "xffl/config/load.h"
#include "xffl/config/settings.h"
#include "xffl/submit/slurm.h"

namespace xffl::config {
namespace {

using testing::HasSubstr;

TEST(Presets, AreTheOnesOfTheProject) {
  EXPECT_THAT(preset_names(),
              testing::ElementsAre("alps", "deucalion", "discoverer", "isambard-ai", "jean-zay",
                                   "jupiter", "karolina", "leonardo", "lumi", "marenostrum5",
                                   "meluxina", "snellius", "vega"));
}

TEST(Presets, NameTheirSourcesAndThatTheyWereNotTested) {
  for (const std::string_view name : preset_names()) {
    EXPECT_THAT(std::string(preset_text(name)), HasSubstr("# source: https://")) << name;
    EXPECT_THAT(std::string(preset_text(name)), HasSubstr("Not tested on the site")) << name;
  }
}

TEST(Presets, MakeAFacilityTogetherWithTheUsersOwnKeys) {
  for (const std::string_view name : preset_names()) {
    std::vector<Setting> settings{
        {"project", "p"}, {"model", "/m"}, {"training.steps_per_round", "1"}};
    for (Setting& setting : preset_settings(name, "site")) settings.push_back(std::move(setting));
    const std::string without = check_settings(settings, "/project");
    EXPECT_EQ(without, "") << name;
    for (const Setting& own : std::vector<Setting>{{"facilities.site.ssh.user", "me"},
                                                   {"facilities.site.slurm.account", "acc"},
                                                   {"facilities.site.slurm.time", "2h"},
                                                   {"facilities.site.workdir", "/e/scratch/me"},
                                                   {"facilities.site.data.train", "/e/data/t"}})
      settings.push_back(own);
    const Experiment experiment =
        parse_experiment(format_settings(settings), "xffl.yaml", "/project");
    const Facility& facility = experiment.facilities.at(0);
    EXPECT_EQ(facility.access, AccessKind::kSsh) << name;
    const auto& slurm = facility.scheduler.as<submit::SlurmSettings>();
    EXPECT_EQ(facility.scheduler.manager().name, "slurm") << name;
    EXPECT_EQ(facility.world_size, slurm.gpus_per_node) << name;
    EXPECT_EQ(slurm.time, std::chrono::hours(2)) << name;
    EXPECT_EQ(slurm.warning, std::chrono::minutes(10)) << name;
    EXPECT_FALSE(facility.ssh.hosts.empty()) << name;
    EXPECT_EQ(facility.deploy.unpack == UnpackPlace::kJob, name == "discoverer") << name;
  }
}

TEST(Presets, AnUnknownOneNamesTheKnown) {
  try {
    preset_settings("fugaku", "f");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kNotFound);
    EXPECT_THAT(error.what(), HasSubstr("there are: alps, deucalion"));
  }
}

}  // namespace
}  // namespace xffl::config
