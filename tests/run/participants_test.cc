#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "run_parts.h"
#include "support/thrown.h"
#include "xffl/facility/weights.h"

namespace xffl::run {
namespace {

using config::Aggregation;
using config::WeightKind;
using facility::cap_shares;
using facility::weights_of;
using history::Accepted;
using history::Participant;
using testing::HasSubstr;

Accepted accepted(const std::string& facility, const std::string& update, int64_t tokens) {
  Accepted accepted{
      .facility = FacilityName(facility), .attempt = 1, .update_sha256 = update, .report = {}};
  accepted.report.tokens = tokens;
  return accepted;
}

const std::vector<Accepted> kAccepted = {accepted("alba", "u1", 24), accepted("brno", "u2", 8),
                                         accepted("cork", "u3", 5)};

std::string refusal(const Participant& participant) {
  const Error error =
      test::error_of([&] { frozen_participants(7, {participant}, kAccepted, Aggregation{}); });
  EXPECT_EQ(error.kind(), ErrorKind::kCorrupt);
  return error.what();
}

TEST(Participants, AreFrozenWithTheirUpdatesAndWeights) {
  const history::ParticipantsFrozen frozen = participants_of(kAccepted, Aggregation{});
  EXPECT_EQ(frozen.facilities[1], FacilityName("brno"));
  EXPECT_EQ(frozen.updates, (std::vector<std::string>{"u1", "u2", "u3"}));
  EXPECT_EQ(frozen.weights, (std::vector<double>{24, 8, 5}));
}

TEST(Participants, AnUpdateAcceptedAfterTheFreezeIsLeftOut) {
  const std::vector<Participant> frozen = {{FacilityName("alba"), "u1", 24.0},
                                           {FacilityName("cork"), "u3", 5.0}};
  const auto participants = frozen_participants(7, frozen, kAccepted, Aggregation{});
  ASSERT_EQ(participants.size(), 2u);
  EXPECT_EQ(participants[1].update_sha256, "u3");
}

TEST(Participants, AnotherUpdateOrWeightThanTheFrozenOneIsRejected) {
  EXPECT_THAT(refusal({FacilityName("alba"), "u9", 24.0}),
              HasSubstr("round 7 cannot be averaged: alba's update was frozen in the journal, and "
                        "the accepted one is u1, expected u9"));
  EXPECT_THAT(refusal({FacilityName("alba"), "u1", 23.5}),
              HasSubstr("its weight is 24.0, expected 23.5"));
  EXPECT_THAT(refusal({FacilityName("dole"), "u1", 24.0}), HasSubstr("it has no accepted update"));
}

TEST(Participants, AreWeightedByTheKeyWeights) {
  std::vector<Accepted> all = kAccepted;
  all[0].report.samples = 3;
  all[1].report.samples = 4;
  all[2].report.samples = 5;
  EXPECT_EQ(weights_of(all, {.weights = WeightKind::kSamples}), (std::vector<double>{3, 4, 5}));
  EXPECT_EQ(weights_of(all, {.weights = WeightKind::kEqual}), (std::vector<double>{1, 1, 1}));
}

std::vector<double> shares(std::vector<double> weights, double max_share) {
  weights = cap_shares(std::move(weights), max_share);
  double sum = 0;
  for (const double weight : weights) sum += weight;
  for (double& weight : weights) weight /= sum;
  return weights;
}

TEST(MaxShare, LowersTheLargestWeightAndKeepsTheRatioOfTheOthers) {
  EXPECT_THAT(shares({80, 15, 5}, 0.5),
              testing::Pointwise(testing::DoubleNear(1e-12), {0.5, 0.375, 0.125}));
  EXPECT_EQ(cap_shares({80, 15, 5}, 0.5), (std::vector<double>{20, 15, 5}));
}

// The excess of the first lifts the second above the share.
TEST(MaxShare, IsAppliedUntilNoFacilityExceedsIt) {
  EXPECT_THAT(shares({70, 25, 4, 1}, 0.4),
              testing::Pointwise(testing::DoubleNear(1e-12), {0.4, 0.4, 0.16, 0.04}));
}

TEST(MaxShare, LeavesWeightsBelowItAndAllWeightsWithoutIt) {
  EXPECT_EQ(cap_shares({3, 4, 5}, 0.5), (std::vector<double>{3, 4, 5}));
  EXPECT_EQ(cap_shares({300, 4, 5}, 0), (std::vector<double>{300, 4, 5}));
  EXPECT_EQ(cap_shares({300, 4, 5}, 1), (std::vector<double>{300, 4, 5}));
}

// Three shares of one third leave nothing for the fourth, which rounding must not divide by.
TEST(MaxShare, HasFiniteWeightsWhenTheOtherFacilitiesHaveAlmostNone) {
  for (const double least : {1.0, 1e-12, 1e-300}) {
    const std::vector<double> all = shares({1e15, 2e15, 3e15, least}, 1.0 / 3);
    for (const double share : all)
      EXPECT_THAT(share, testing::AllOf(testing::Gt(0), testing::Lt(0.34)));
  }
}

TEST(MaxShare, TooFewFacilitiesForItCountEqually) {
  EXPECT_EQ(cap_shares({80, 20}, 0.5), (std::vector<double>{1, 1}));
  EXPECT_EQ(cap_shares({80, 20}, 0.3), (std::vector<double>{1, 1}));
  EXPECT_EQ(cap_shares({80}, 0.5), (std::vector<double>{1}));
}

TEST(MaxShare, IsFrozenWithTheParticipants) {
  const Aggregation capped{.max_share = 0.5};
  const history::ParticipantsFrozen frozen = participants_of(kAccepted, capped);
  EXPECT_EQ(frozen.weights, (std::vector<double>{13, 8, 5}));
  std::vector<Participant> participants;
  for (size_t i = 0; i < 3; ++i)
    participants.push_back({frozen.facilities[i], frozen.updates[i], frozen.weights[i]});
  EXPECT_EQ(frozen_participants(7, participants, kAccepted, capped).size(), 3u);
  EXPECT_EQ(test::error_of([&] { frozen_participants(7, participants, kAccepted, {}); }).kind(),
            ErrorKind::kCorrupt);
}

// Another compiler may round a capped weight differently; the mean takes the frozen one.
TEST(MaxShare, TheLastBitOfAFrozenWeightMayDiffer) {
  const Aggregation capped{.max_share = 0.5};
  const auto with_first_weight = [&](double weight) {
    return frozen_participants(7,
                               {{FacilityName("alba"), "u1", weight},
                                {FacilityName("brno"), "u2", 8.0},
                                {FacilityName("cork"), "u3", 5.0}},
                               kAccepted, capped);
  };
  EXPECT_EQ(with_first_weight(std::nextafter(13.0, 14.0)).size(), 3u);
  EXPECT_EQ(test::error_of([&] { with_first_weight(13.001); }).kind(), ErrorKind::kCorrupt);
}

}  // namespace
}  // namespace xffl::run
