// The division of memory among simultaneous transfers.
#include "xffl/base/memory_shares.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace xffl {
namespace {

TEST(MemoryShares, AreEqualWithinTheirLimits) {
  MemoryShares whole(1000);
  const MemoryShares::Share first(whole);
  EXPECT_EQ(first.bytes(10, 5000), 1000u);
  EXPECT_EQ(first.bytes(10, 600), 600u);
  std::vector<std::unique_ptr<MemoryShares::Share>> others;
  for (int i = 0; i < 3; ++i) others.push_back(std::make_unique<MemoryShares::Share>(whole));
  EXPECT_EQ(first.bytes(10, 5000), 250u);
  EXPECT_EQ(others[2]->bytes(300, 5000), 300u);
  others.clear();
  EXPECT_EQ(first.bytes(10, 5000), 1000u);
}

}  // namespace
}  // namespace xffl
