#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "run_parts.h"
#include "support/thrown.h"

namespace xffl::run {
namespace {

using config::WeightKind;
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
  const Error error = test::error_of(
      [&] { frozen_participants(7, {participant}, kAccepted, WeightKind::kTokens); });
  EXPECT_EQ(error.kind(), ErrorKind::kCorrupt);
  return error.what();
}

TEST(Participants, AreFrozenWithTheirUpdatesAndWeights) {
  const history::ParticipantsFrozen frozen = participants_of(kAccepted, WeightKind::kTokens);
  EXPECT_EQ(frozen.facilities[1], FacilityName("brno"));
  EXPECT_EQ(frozen.updates, (std::vector<std::string>{"u1", "u2", "u3"}));
  EXPECT_EQ(frozen.weights, (std::vector<double>{24, 8, 5}));
}

TEST(Participants, AnUpdateAcceptedAfterTheFreezeIsLeftOut) {
  const std::vector<Participant> frozen = {{FacilityName("alba"), "u1", 24.0},
                                           {FacilityName("cork"), "u3", 5.0}};
  const auto participants = frozen_participants(7, frozen, kAccepted, WeightKind::kTokens);
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

}  // namespace
}  // namespace xffl::run
