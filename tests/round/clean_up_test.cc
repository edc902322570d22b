#include "clean_up.h"

#include <gtest/gtest.h>

#include <string>

namespace xffl::round {
namespace {

std::string hash(char digit) { return std::string(64, digit); }

// Three rounds published, the fourth being averaged.
History history_of(const std::string& models) {
  History history;
  history.initial_sha256 = hash(models[0]);
  for (int round = 1; round <= 3; ++round) {
    history.rounds[round].model_sha256 = hash(models[static_cast<size_t>(round)]);
    history.rounds[round].published = true;
  }
  return history;
}

TEST(OutdatedModel, IsTheOneThatThePublicationLetsGo) {
  EXPECT_EQ(outdated_model(history_of("abcd"), 4, 1), std::string(16, 'c'));
  EXPECT_EQ(outdated_model(history_of("abcd"), 4, 2), std::string(16, 'b'));
  EXPECT_EQ(outdated_model(history_of("abcd"), 4, 3), std::string(16, 'a'));
  EXPECT_EQ(outdated_model(history_of("abcd"), 4, 4), "") << "all are kept";
}

TEST(OutdatedModel, IsNoneThatALaterRoundBeganWithAgain) {
  EXPECT_EQ(outdated_model(history_of("abbd"), 4, 2), "");
  History with_lora = history_of("abcd");
  with_lora.adapted_sha256 = hash('b');
  EXPECT_EQ(outdated_model(with_lora, 4, 2), "");
}

}  // namespace
}  // namespace xffl::round
