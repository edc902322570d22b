#include "xffl/exports/ro_crate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "report/synthetic_run.h"
#include "xffl/base/json.h"

namespace xffl::exports {
namespace {

using test::SyntheticRun;
using testing::HasSubstr;
using testing::Not;

SyntheticRun some_run() {
  SyntheticRun run(2);
  run.round(1, 2);
  run.plan(2, 2);
  run.open(2, 0);
  run.fail(2, 0, 1, "the node login01.site0.example failed: password=hunter2hunter2");
  run.open(2, 0, 2);
  run.accept(2, 0, 2);
  run.open(2, 1);
  run.accept(2, 1);
  run.publish(2, {0, 1});
  return run;
}

std::map<std::string, Json> entities(const std::string& text) {
  std::map<std::string, Json> found;
  const Json crate = parse_json(text, "crate");
  for (const Json& entity : crate.at("@graph"))
    EXPECT_TRUE(found.emplace(entity.at("@id").get<std::string>(), entity).second) << entity;
  return found;
}

void collect_references(const Json& json, bool is_entity, std::set<std::string>& found) {
  if (json.is_object() && json.size() == 1 && json.contains("@id") && !is_entity)
    found.insert(json["@id"].get<std::string>());
  else if (json.is_structured())
    for (const Json& value : json) collect_references(value, false, found);
}

TEST(RoCrateText, IsAConnectedGraphOfTheProfile) {
  const auto all = entities(format_ro_crate(some_run().story(), {.license = "CC-BY-4.0"}));
  const Json& root = all.at("./");
  for (const char* key :
       {"name", "description", "datePublished", "license", "conformsTo", "mentions"})
    EXPECT_TRUE(root.contains(key)) << key;
  EXPECT_EQ(all.at("ro-crate-metadata.json").at("about").at("@id"), "./");
  EXPECT_EQ(root.at("license").at("@id"), "https://spdx.org/licenses/CC-BY-4.0");
  std::set<std::string> references;
  for (const auto& [name, entity] : all) {
    EXPECT_TRUE(entity.contains("@type")) << name;
    collect_references(entity, true, references);
  }
  references.erase("https://w3id.org/ro/crate/1.1");
  EXPECT_GT(references.size(), 10u);
  for (const std::string& reference : references) EXPECT_TRUE(all.contains(reference)) << reference;
}

TEST(RoCrateText, TellsWhichUpdatesMadeAModel) {
  const auto all = entities(format_ro_crate(some_run().story(), {.license = "mit"}));
  const Json& mean = all.at("#mean-2");
  EXPECT_EQ(mean.at("result").at("@id"), "#model-2");
  ASSERT_EQ(mean.at("object").size(), 2u);
  EXPECT_EQ(mean.at("object")[0].at("@id"), "#update-round-2-facility-1-attempt-2");
  EXPECT_EQ(all.at("#model-2").at("identifier"), "sha256:" + SyntheticRun::model(2));
  const Json& training = all.at("#round-2-facility-1-attempt-2");
  EXPECT_EQ(training.at("object").at("@id"), "#model-1");
  EXPECT_EQ(training.at("result").at("@id"), "#update-round-2-facility-1-attempt-2");
  EXPECT_EQ(training.at("actionStatus"), "http://schema.org/CompletedActionStatus");
  const Json& failed = all.at("#round-2-facility-1-attempt-1");
  EXPECT_EQ(failed.at("actionStatus"), "http://schema.org/FailedActionStatus");
  EXPECT_FALSE(failed.contains("result"));
  EXPECT_EQ(all.at("#round-1-facility-1-attempt-1").at("object").at("@id"), "#model-0");
}

TEST(RoCrateText, NamesTheFacilityAndTheHashOfEachUpdate) {
  report::RunStory story = some_run().story();
  const auto digit = [](bool is_first) { return is_first ? '4' : '5'; };
  for (report::AttemptStory& attempt : story.attempts)
    if (attempt.report)
      attempt.report->update_sha256 =
          SyntheticRun::hash(digit(attempt.facility == SyntheticRun::name(0)));
  const auto all = entities(format_ro_crate(story, {.license = "mit"}));
  for (const std::string facility : {"1", "2"}) {
    const std::string own = "round-1-facility-" + facility + "-attempt-1";
    EXPECT_EQ(all.at("#" + own).at("agent").at("@id"), "#facility-" + facility);
    EXPECT_EQ(all.at("#update-" + own).at("identifier"),
              "sha256:" + SyntheticRun::hash(digit(facility == "1")));
  }
}

TEST(RoCrateText, HasNoSecretAndNoNamesUnlessAsked) {
  const SyntheticRun run = some_run();
  const std::string text = format_ro_crate(run.story(), {.license = "mit"});
  for (const char* hidden : {"site0", "login01", "000102030405060708090a0b0c0d0e0f"})
    EXPECT_THAT(text, Not(HasSubstr(hidden)));
  EXPECT_THAT(text, Not(HasSubstr(run.nonce(1, 0, 1))));
  const std::string named =
      format_ro_crate(run.story(), {.license = "mit", .names_facilities = true});
  EXPECT_THAT(named, HasSubstr("site0"));
  EXPECT_THAT(named, HasSubstr("login01"));
  EXPECT_THAT(named, Not(HasSubstr("hunter2")));
  EXPECT_THAT(named, Not(HasSubstr("000102030405060708090a0b0c0d0e0f")));
}

}  // namespace
}  // namespace xffl::exports
