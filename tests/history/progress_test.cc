#include "xffl/history/progress.h"

#include <gtest/gtest.h>

#include <limits>

namespace xffl::history {
namespace {

const FacilityName kAlba("alba"), kBrno("brno");

class ProgressTest : public testing::Test {
 protected:
  void add(int round, const std::optional<FacilityName>& facility, const Event& event) {
    RecordedEvent recorded;
    recorded.time_utc = "2026-03-01T12:34:56.789Z";
    recorded.scope.round = round;
    recorded.scope.facility = facility;
    recorded.scope.attempt = 1;
    recorded.event = event;
    progress_.add(recorded, [&] {
      ++num_sums_;
      return node_seconds_;
    });
  }
  void accept(int round, const FacilityName& facility, double loss, const std::string& set = "it") {
    UpdateAccepted update;
    update.report.validation.push_back({set, 100, loss, 0});
    add(round, facility, update);
  }
  void publish(int round) { add(round, std::nullopt, Published{"m"}); }
  // Of all models that are measured.
  std::vector<double> losses() const {
    std::vector<double> all;
    for (const Progress::Model& model : progress_.models())
      if (model.loss) all.push_back(*model.loss);
    return all;
  }

  Progress progress_;
  double node_seconds_ = 0;
  int num_sums_ = 0;  // over the node-seconds of all facilities
};

TEST_F(ProgressTest, ARoundMeasuresItsInputModel) {
  add(0, std::nullopt, RunCreated{});
  accept(1, kAlba, 4);
  accept(1, kBrno, 2);
  EXPECT_TRUE(losses().empty());
  node_seconds_ = 70;
  publish(1);
  accept(2, kAlba, 3);
  accept(2, kBrno, 1);
  node_seconds_ = 120;
  publish(2);
  EXPECT_EQ(losses(), (std::vector<double>{3, 2}));
  ASSERT_EQ(progress_.models().size(), 3u);
  EXPECT_FALSE(progress_.models()[2].loss);
  EXPECT_EQ(progress_.models()[0].node_seconds, 0);
  EXPECT_EQ(progress_.models()[1].node_seconds, 70);
  EXPECT_EQ(progress_.models()[2].node_seconds, 120);
  EXPECT_EQ(progress_.first_comparable(), 0u);
  EXPECT_EQ(progress_.created_utc(), "2026-03-01T12:34:56.789Z");
  EXPECT_EQ(num_sums_, 2) << "one for each publication";
}

TEST_F(ProgressTest, EachSetOfAFacilityCounts) {
  for (const int round : {1, 2}) {
    accept(round, kAlba, 5 - round, "it");
    accept(round, kAlba, 3 - round, "en");
    publish(round);
  }
  EXPECT_EQ(losses(), (std::vector<double>{3, 2}));
  EXPECT_EQ(progress_.first_comparable(), 0u);
}

TEST_F(ProgressTest, AMissingFacilityKeepsItsLastMeasurement) {
  accept(1, kAlba, 4);
  accept(1, kBrno, 2);
  publish(1);
  accept(2, kAlba, 3);
  publish(2);
  publish(3);
  EXPECT_EQ(losses(), (std::vector<double>{3, 2.5, 2.5}));
  EXPECT_EQ(progress_.first_comparable(), 0u);
}

TEST_F(ProgressTest, AChangeOfTheSetsBeginsANewComparison) {
  accept(1, kAlba, 4);
  publish(1);
  accept(2, kAlba, 3);
  accept(2, kBrno, 1);  // measures for the first time
  publish(2);
  EXPECT_EQ(losses(), (std::vector<double>{4, 2}));
  EXPECT_EQ(progress_.first_comparable(), 1u);
  add(0, kBrno, FacilityLeft{.reason = "r"});
  accept(3, kBrno, 1);  // of the round in progress
  accept(3, kAlba, 2);
  publish(3);
  EXPECT_EQ(losses(), (std::vector<double>{4, 2, 2}));
  EXPECT_EQ(progress_.first_comparable(), 2u);
  add(0, kBrno, FacilityJoined{});
  accept(4, kBrno, 4);
  publish(4);
  EXPECT_EQ(losses().back(), 3);
  EXPECT_EQ(progress_.first_comparable(), 3u);
}

TEST_F(ProgressTest, AFacilityThatLeavesAfterItsUpdateDoesNotCount) {
  accept(1, kAlba, 4);
  accept(1, kBrno, 2);
  add(0, kBrno, FacilityLeft{.reason = "r"});
  publish(1);
  EXPECT_EQ(losses(), std::vector<double>{4});
}

// Its measurement of the round in progress would stay in the mean for the rest of the run.
TEST_F(ProgressTest, AFacilityThatLeavesInALaterRoundDoesNotCount) {
  accept(1, kAlba, 4);
  accept(1, kBrno, 2);
  publish(1);
  accept(2, kAlba, 3);
  accept(2, kBrno, 1);
  add(0, kBrno, FacilityLeft{.reason = "r"});
  publish(2);
  EXPECT_EQ(losses(), (std::vector<double>{3, 3}));
  EXPECT_EQ(progress_.first_comparable(), 1u);
}

TEST_F(ProgressTest, ALostUpdateAndAnInvalidLossDoNotCount) {
  accept(1, kAlba, 4);
  accept(1, kBrno, 9);
  add(1, kBrno, UpdateLost{"damaged"});
  publish(1);
  EXPECT_EQ(losses(), std::vector<double>{4});
  accept(2, kAlba, std::numeric_limits<double>::infinity());
  publish(2);
  EXPECT_EQ(losses(), (std::vector<double>{4, 4}));
}

TEST_F(ProgressTest, WithoutValidationSetsThereIsNoLoss) {
  publish(1);
  publish(2);
  EXPECT_TRUE(losses().empty());
  EXPECT_EQ(progress_.models().size(), 3u);
}

}  // namespace
}  // namespace xffl::history
