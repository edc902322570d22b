#include "xffl/exports/tables.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "report/synthetic_run.h"
#include "support/temp_dir.h"
#include "xffl/base/file.h"

namespace xffl::exports {
namespace {

using test::SyntheticRun;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// The records of a text, by the grammar of RFC 4180.
std::vector<std::vector<std::string>> parse(const std::string& text) {
  std::vector<std::vector<std::string>> rows(1, std::vector<std::string>(1));
  bool inside = false;
  for (size_t i = 0; i < text.size(); ++i) {
    std::string& field = rows.back().back();
    if (inside && text[i] == '"' && i + 1 < text.size() && text[i + 1] == '"') {
      field += text[++i];
    } else if (text[i] == '"') {
      inside = !inside;
    } else if (!inside && text[i] == ',') {
      rows.back().emplace_back();
    } else if (!inside && text.compare(i, 2, "\r\n") == 0) {
      rows.emplace_back(1);
      ++i;
    } else {
      field += text[i];
    }
  }
  EXPECT_FALSE(inside);
  EXPECT_THAT(rows.back(), ElementsAre("")) << "the last line has an end";
  rows.pop_back();
  for (const auto& row : rows) EXPECT_EQ(row.size(), rows.front().size());
  return rows;
}

// The field of a row in the column `name`.
std::string field(const std::vector<std::vector<std::string>>& rows, size_t row,
                  const std::string& name) {
  for (size_t i = 0; i < rows.front().size(); ++i)
    if (rows.front()[i] == name) return rows.at(row)[i];
  ADD_FAILURE() << "no column " << name;
  return "";
}

TEST(Tables, HaveTheRun) {
  SyntheticRun run;
  run.round(1, 2);
  run.plan(2, 2);
  run.open(2, 0);
  run.accept(2, 0);
  run.open(2, 1);
  run.accept(2, 1);
  const Tables tables = make_tables(run.story());
  const auto rounds = parse(tables.rounds);
  ASSERT_EQ(rounds.size(), 3u);
  EXPECT_EQ(field(rounds, 1, "seconds"), "330");
  EXPECT_EQ(field(rounds, 1, "participants"), "2");
  EXPECT_EQ(field(rounds, 1, "published_at"), "2026-03-01T12:06:00.000Z");
  EXPECT_EQ(field(rounds, 2, "published_at"), "");
  EXPECT_THAT(field(rounds, 1, "mean_loss_nats"), StartsWith("3.05"));
  const auto attempts = parse(tables.attempts);
  ASSERT_EQ(attempts.size(), 5u);
  EXPECT_EQ(field(attempts, 1, "outcome"), "accepted");
  EXPECT_EQ(field(attempts, 1, "steps"), "10");
  EXPECT_EQ(field(attempts, 1, "train_loss_nats"), "3");
  EXPECT_EQ(field(attempts, 1, "lost_seconds"), "");
  const auto losses = parse(tables.losses);
  ASSERT_EQ(losses.size(), 5u);
  EXPECT_THAT(losses[1],
              ElementsAre("0", "site0", "it", "100", "4", testing::StartsWith("54.598")));
}

TEST(Tables, QuoteTextAndDisarmFormulas) {
  SyntheticRun run;
  run.plan(1, 1);
  run.open(1, 0);
  run.fail(1, 0, 1, "the job said \"no, never\",\nand ended: password=hunter2hunter2");
  const std::vector<std::string> formulas = {"=HYPERLINK(\"http://evil\")", "+1", "-1", "@SUM(1)"};
  int attempt = 1;
  for (const std::string& formula : formulas) {
    run.open(1, 0, ++attempt);
    run.fail(1, 0, attempt, formula);
  }
  const auto attempts = parse(make_tables(run.story()).attempts);
  ASSERT_EQ(attempts.size(), 6u);
  EXPECT_THAT(field(attempts, 1, "reason"), HasSubstr("the job said \"no, never\","));
  EXPECT_THAT(field(attempts, 1, "reason"), Not(HasSubstr("hunter2"))) << "a secret";
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(field(attempts, i + 2, "reason"), "'" + formulas[i]);
}

TEST(Tables, AnEvaluationHasNoTrainingLoss) {
  SyntheticRun run;
  run.round(1, 1);
  run.plan(2, 1, /*evaluates=*/true);
  run.open(2, 0);
  job::JobReport evaluated = run.report(2, 0, 1);
  evaluated.update_sha256.clear();
  evaluated.steps = evaluated.samples = evaluated.tokens = 0;
  evaluated.train_loss = evaluated.tokens_per_second = 0;
  run.add({2, SyntheticRun::name(0), 1}, history::UpdateAccepted{"", evaluated, 0, {}});
  const auto attempts = parse(make_tables(run.story()).attempts);
  ASSERT_EQ(attempts.size(), 3u);
  EXPECT_EQ(field(attempts, 2, "steps"), "0");
  for (const char* column : {"train_loss_nats", "tokens_per_second"}) {
    EXPECT_NE(field(attempts, 1, column), "") << column;
    EXPECT_EQ(field(attempts, 2, column), "") << column;
  }
}

TEST(Tables, AreWrittenWhole) {
  test::TempDir folder;
  for (int time = 0; time < 2; ++time)
    write_tables(make_tables(SyntheticRun().story()), folder / "a/b");
  EXPECT_THAT(read_file(folder / "a/b/losses.csv", 1000),
              "round,facility,set,tokens,loss_nats,perplexity\r\n");
  EXPECT_TRUE(std::filesystem::exists(folder / "a/b/rounds.csv"));
  EXPECT_TRUE(std::filesystem::exists(folder / "a/b/attempts.csv"));
}

}  // namespace
}  // namespace xffl::exports
