#include "group_exchange.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include "shard/small_layout.h"
#include "support/ranks.h"

namespace xffl::train {
namespace {

// Two groups of one rank. Group g has the weights g before each exchange, so their mean is the
// share of group 1.
TEST(GroupExchange, WeighsAGroupByItsTokensSinceTheLastExchange) {
  if (!comm::has_gloo()) GTEST_SKIP() << "built without Gloo's headers (libgloo-dev)";
  test::run_ranks(2, [](comm::Group& world) {
    const JobGroups groups(world, 2);
    shard::FlatParameters flat(shard::small_layout(), {});
    job::RankGroups settings;
    settings.count = settings.interval = 2;
    settings.weighting = job::GroupWeighting::kTokens;
    GroupExchange exchange(groups, flat, settings, at::kCPU);
    const auto share_of_group_1 = [&](int64_t steps_done, int64_t tokens) {
      for (const shard::UnitState& state : flat.states()) state.master_S.fill_(groups.index());
      exchange.after_step(steps_done - 1, 2 * tokens);
      exchange.after_step(steps_done, 0);  // the last batch alone would give equal shares
      EXPECT_EQ(exchange.tokens_since(), 0);
      return shard::master(flat, 3).mean().item<double>();
    };
    EXPECT_EQ(share_of_group_1(2, groups.index() == 1 ? 3 : 1), 0.75);
    EXPECT_EQ(share_of_group_1(4, groups.index() == 1 ? 1 : 3), 0.25);
    EXPECT_EQ(share_of_group_1(6, 0), 0.5) << "without tokens, all groups count equally";
    EXPECT_EQ(share_of_group_1(8, groups.index() == 1 ? 900'000'000 : 300'000'000), 0.75)
        << "the sum exceeds 32 bits";
  });
}

// The model reads a copy of the masters.
TEST(GroupExchange, TheModelReadsTheMeanInBf16) {
  if (!comm::has_gloo()) GTEST_SKIP() << "built without Gloo's headers (libgloo-dev)";
  test::run_ranks(2, [](comm::Group& world) {
    const JobGroups groups(world, 2);
    for (const job::Masters masters : {job::Masters::kFloat32, job::Masters::kSplit}) {
      shard::FlatParameters flat({{{8, 8}, 0, true}},
                                 {.compute_dtype = at::kBFloat16, .masters = masters});
      job::RankGroups settings;
      settings.count = 2;
      settings.interval = 1;
      GroupExchange exchange(groups, flat, settings, at::kCPU);
      flat.states().at(0).master_S.fill_(groups.index());  // has no remainder
      flat.refresh_compute();
      exchange.after_step(1, 1);
      EXPECT_TRUE(flat.compute(0).eq(0.5).all().item<bool>()) << static_cast<int>(masters);
    }
  });
}

// 4096 elements have no third.
TEST(GroupExchange, ThreeGroupsExchangeAllElements) {
  if (!comm::has_gloo()) GTEST_SKIP() << "built without Gloo's headers (libgloo-dev)";
  test::run_ranks(3, [](comm::Group& world) {
    const JobGroups groups(world, 3);
    shard::FlatParameters flat({{{shard::kPieceElements}, 0, true}}, {});
    job::RankGroups settings;
    settings.count = 3;
    settings.interval = 1;
    GroupExchange exchange(groups, flat, settings, at::kCPU);
    const at::Tensor places = at::arange(shard::kPieceElements, at::kFloat);
    flat.states().at(0).master_S.copy_(places * (1 + groups.index()));
    EXPECT_NO_THROW(exchange.after_step(1, 1));
    EXPECT_TRUE(shard::master(flat, 0).equal(places * 2));
  });
}

// Each of a group's ranks, which hold the same elements, exchanges its share.
TEST(GroupExchange, GroupsOfThreeRanksExchangeAllElements) {
  if (!comm::has_gloo()) GTEST_SKIP() << "built without Gloo's headers (libgloo-dev)";
  test::run_ranks(6, [](comm::Group& world) {
    const JobGroups groups(world, 2);
    shard::FlatParameters flat({{{shard::kPieceElements}, 0, true}}, {});
    job::RankGroups settings;
    settings.count = 2;
    settings.interval = 1;
    GroupExchange exchange(groups, flat, settings, at::kCPU);
    const at::Tensor places = at::arange(shard::kPieceElements, at::kFloat);
    flat.states().at(0).master_S.copy_(places * (1 + 2 * groups.index()));
    EXPECT_NO_THROW(exchange.after_step(1, 1));
    EXPECT_TRUE(shard::master(flat, 0).equal(places * 2));
  });
}

// The groups have not moved, so the model stays. It has no exact place in bfloat16.
TEST(GroupExchange, TheOuterOptimizerBeginsAtTheWholeOfSplitMasters) {
  if (!comm::has_gloo()) GTEST_SKIP() << "built without Gloo's headers (libgloo-dev)";
  test::run_ranks(2, [](comm::Group& world) {
    const JobGroups groups(world, 2);
    shard::FlatParameters flat({{{8, 8}, 0, true}},
                               {.compute_dtype = at::kBFloat16, .masters = job::Masters::kSplit});
    const double value = 1 + 1.0 / 4096;
    flat.set_master_part(0, {0, 64}, at::full({64}, value, at::kFloat));
    job::RankGroups settings;
    settings.count = 2;
    settings.interval = 1;
    settings.outer.kind = job::OuterOptimizer::kSgd;
    settings.outer.learning_rate = 0.5;
    GroupExchange exchange(groups, flat, settings, at::kCPU);
    exchange.after_step(1, 1);
    EXPECT_TRUE(shard::master(flat, 0).eq(value).all().item<bool>());
  });
}

// A unit travels in pieces of 4 Mi elements.
TEST(GroupExchange, AllPiecesOfALargeUnitAreExchanged) {
  if (!comm::has_gloo()) GTEST_SKIP() << "built without Gloo's headers (libgloo-dev)";
  test::run_ranks(2, [](comm::Group& world) {
    const JobGroups groups(world, 2);
    constexpr int64_t kElements = (2 << 22) + 1000;
    shard::FlatParameters flat({{{kElements}, 0, true}}, {});
    job::RankGroups settings;
    settings.count = 2;
    settings.interval = 1;
    GroupExchange exchange(groups, flat, settings, at::kCPU);
    const at::Tensor places = at::arange(kElements, at::kFloat);
    flat.states().at(0).master_S.narrow(0, 0, kElements).copy_(places * (1 + 2 * groups.index()));
    exchange.after_step(1, 1);
    EXPECT_TRUE(shard::master(flat, 0).equal(places * 2));
  });
}

}  // namespace
}  // namespace xffl::train
