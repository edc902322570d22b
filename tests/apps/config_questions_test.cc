// The answers that the wizard of `xffl config` proposes.
#include "config_questions.h"

#include <gtest/gtest.h>

namespace xffl {
namespace {

TEST(ConfigQuestions, AWalltimeHasTheLargestUnitThatFits) {
  EXPECT_EQ(duration_text(std::chrono::hours(12)), "12h");
  EXPECT_EQ(duration_text(std::chrono::minutes(90)), "90m");
  EXPECT_EQ(duration_text(std::chrono::minutes(30)), "30m");
  EXPECT_EQ(duration_text(std::chrono::seconds(90)), "90s");
}

}  // namespace
}  // namespace xffl
