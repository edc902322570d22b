// Ranks are threads over Gloo. References: the same numbers on a single rank, or sums by hand.
#include "xffl/shard/flat_parameters.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>

#include "shard/small_layout.h"
#include "support/ranks.h"
#include "xffl/shard/optimizer.h"

namespace xffl::shard {
namespace {

TEST(FlatParameters, Float32ComputesWithTheMastersThemselves) {
  FlatParameters flat(small_layout(), {});
  master(flat, 2).fill_(3);
  flat.gather(1);
  EXPECT_TRUE(flat.compute(2).is_alias_of(flat.states()[1].master_S));
  EXPECT_TRUE(flat.compute(2).eq(3).all().item<bool>());
  flat.open_gradients(1);
  EXPECT_TRUE(flat.gradient(2).is_alias_of(flat.states()[1].gradient_S));
}

TEST(FlatParameters, ABf16CopyFollowsTheMasters) {
  FlatParameters flat(small_layout(), {.compute_dtype = at::kBFloat16});
  master(flat, 3).fill_(1.001);
  flat.gather(1);
  EXPECT_EQ(flat.compute(3).scalar_type(), at::kBFloat16);
  EXPECT_EQ(flat.gradient(3).scalar_type(), at::kFloat);
  EXPECT_EQ(flat.compute(3).max().item<float>(), 0);
  flat.refresh_compute();
  flat.gather(1);
  EXPECT_TRUE(flat.compute(3).equal(master(flat, 3).to(at::kBFloat16)));
}

TEST(FlatParameters, PiecesOfAMasterHaveTheirPlaces) {
  FlatParameters flat(small_layout(), {});
  std::vector<float> values(70 * 70);
  std::iota(values.begin(), values.end(), 1.0f);
  const std::span<const float> whole(values);
  flat.store_master_part(3, 0, whole.first(1000));
  flat.store_master_part(3, 1000, whole.subspan(1000));
  EXPECT_TRUE(master(flat, 3).flatten().equal(at::tensor(values, at::kFloat)));
  flat.set_master_part(3, {4000, 900}, at::full({900}, 0.5, at::kFloat));
  std::fill(values.begin() + 4000, values.end(), 0.5f);
  EXPECT_TRUE(master(flat, 3).flatten().equal(at::tensor(values, at::kFloat)));
}

// The writer of an update reads masters in pieces. Whole numbers up to 256 are exact in bfloat16.
TEST(FlatParameters, MastersAreReadFromTheirPlaces) {
  const at::Tensor values = at::arange(200, at::kFloat);
  for (const Masters masters : {Masters::kFloat32, Masters::kSplit, Masters::kNone}) {
    FlatParameters flat({{{200}, 0, true}}, {.compute_dtype = at::kBFloat16, .masters = masters});
    flat.set_master_part(0, {0, 200}, values);
    std::vector<float> found(50);
    read_masters(flat.states().at(0), 120, found);
    EXPECT_TRUE(at::tensor(found, at::kFloat).equal(values.narrow(0, 120, 50)))
        << static_cast<int>(masters);
  }
}

TEST(FlatParameters, TheNormIsGlobalAndExact) {
  at::manual_seed(1);
  FlatParameters flat(small_layout(), {});
  double square_sum = 0;
  for (size_t i = 0; i < flat.size(); ++i) {
    flat.gradient(i).normal_(0, 3);
    square_sum += flat.gradient(i).to(at::kDouble).square().sum().item<double>();
  }
  EXPECT_NEAR(flat.gradient_square_sum().item<double>() / square_sum, 1, 1e-6);
  for (const UnitState& state : flat.states()) state.gradient_S.mul_(0.5);
  EXPECT_NEAR(flat.gradient_square_sum().item<double>() / square_sum, 0.25, 1e-6);
  flat.gradient(4)[1].fill_(NAN);
  EXPECT_TRUE(std::isnan(flat.gradient_square_sum().item<double>()));
}

TEST(FlatParameters, FrozenParametersHaveOneCopyInTheComputeDtype) {
  FlatParameters flat(small_layout(), {.compute_dtype = at::kBFloat16, .frozen = true});
  EXPECT_EQ(flat.master_part(3).scalar_type(), at::kBFloat16);
  EXPECT_FALSE(flat.states()[1].gradient_S.defined());
  flat.master_part(3).fill_(1.5);
  flat.refresh_compute();
  flat.gather(1);
  EXPECT_TRUE(flat.compute(3).is_alias_of(flat.states()[1].master_S));
  EXPECT_TRUE(flat.compute(3).eq(1.5).all().item<bool>());
}

// A frozen block has no parameters, and the units keep their numbers.
TEST(FlatParameters, UnitsMayBeEmpty) {
  test::run_ranks(2, [](comm::Group& world) {
    const auto gather = world.split({0, 1}, "gather"), reduce = world.split({0, 1}, "reduce");
    for (const Sharded sharded :
         {Sharded{}, Sharded{true}, Sharded{true, true}, Sharded{true, true, true}}) {
      FlatParameters flat({{{5, 7}, 0, true}, {{3, 4}, 2, true}}, {.sharded = sharded},
                          {gather.get(), reduce.get(), nullptr});
      Optimizer adamw(flat, {});
      flat.begin_step();
      for (const int unit : {2, 1, 0}) {
        flat.open_gradients(unit);
        if (unit != 1) flat.gradient(unit == 0 ? 0 : 1).fill_(1);
        flat.close_gradients(unit);
      }
      flat.finish_gradients();
      EXPECT_NEAR(flat.gradient_square_sum().item<double>(), 4 * (35 + 12), 1e-3);
      adamw.step(0.1);
      for (const int unit : {0, 1, 2}) flat.gather(unit);
      EXPECT_NEAR(flat.compute(1).mean().item<double>(), -0.1, 1e-5);
      EXPECT_EQ(whole_masters(flat, 1).numel(), 0);
    }
  });
}

// ---- every mode of sharding, on several ranks

struct Mode {
  const char* name;
  Sharded sharded;
  Offload offload;
  at::ScalarType dtype = at::kFloat;
  Masters masters = Masters::kFloat32;
  at::ScalarType gradients = at::kFloat;
  at::ScalarType moments = at::kFloat;

  Mode unsharded() const {
    Mode mode = *this;
    mode.sharded = {};
    mode.offload = {};
    return mode;
  }
};

void PrintTo(const Mode& mode, std::ostream* out) { *out << mode.name; }

// The state after three steps of two micro-batches.
struct Outcome {
  std::vector<at::Tensor> masters;
  std::vector<at::Tensor> computed;
  std::vector<double> square_sums;
};

// A gradient that depends on rank, step, micro-batch and parameter; in sixteenths, so that sums of
// a few are exact in any order.
void fill_gradient(at::Tensor gradient, int rank, int step, int micro_batch, size_t index) {
  const at::Tensor ramp = at::arange(gradient.numel(), at::kFloat).remainder(13).view_as(gradient);
  gradient.add_((ramp - 6 + rank + 2 * step - micro_batch + static_cast<int>(index)) / 16);
}

void work_micro_batch(FlatParameters& flat, int rank, int step, int micro_batch) {
  flat.set_last_micro_batch(micro_batch == 1);
  for (int unit = 0; unit < flat.num_units(); ++unit) {
    flat.gather(unit);
    if (unit + 1 < flat.num_units()) flat.prefetch(unit + 1);
    flat.release(unit);
  }
  for (int unit = flat.num_units() - 1; unit >= 0; --unit) {
    const bool anew = flat.open_gradients(unit);
    for (size_t i = 0; i < flat.size(); ++i) {
      if (flat.layout().places()[i].unit != unit) continue;
      if (anew) flat.gradient(i).zero_();
      fill_gradient(flat.gradient(i), rank, step, micro_batch, i);
    }
    flat.close_gradients(unit);
  }
}

Outcome train(FlatParameters& flat, int rank, at::ScalarType moments) {
  Outcome outcome;
  for (size_t i = 0; i < flat.size(); ++i) {
    const Range range = flat.master_range(i);
    const at::Tensor whole =
        at::arange(flat.layout().places()[i].num_elements, at::kFloat).remainder(7) - 3;
    if (range.count > 0)
      flat.set_master_part(i, {0, range.count}, whole.narrow(0, range.begin, range.count) / 5);
  }
  flat.refresh_compute();
  Optimizer optimizer(flat, {0.9, 0.95, 1e-8, 0.1, moments});
  for (int step = 0; step < 3; ++step) {
    flat.begin_step();
    for (int micro_batch = 0; micro_batch < 2; ++micro_batch)
      work_micro_batch(flat, rank, step, micro_batch);
    flat.finish_gradients();
    outcome.square_sums.push_back(flat.gradient_square_sum().item<double>());
    for (const UnitState& state : flat.states()) state.gradient_S.mul_(0.3);
    optimizer.step(0.01 * (step + 1));
  }
  for (size_t i = 0; i < flat.size(); ++i) {
    const int unit = flat.layout().places()[i].unit;
    outcome.masters.push_back(master(flat, i).clone());
    flat.gather(unit);
    outcome.computed.push_back(flat.compute(i).clone());
    flat.release(unit);
  }
  return outcome;
}

// Shard groups of neighbours, `group_size` ranks each.
Outcome train_in_world(comm::Group& world, const Mode& mode, int group_size) {
  std::vector<int> shard_ranks, replica_ranks;
  for (int rank = 0; rank < world.size(); ++rank) {
    if (rank / group_size == world.rank() / group_size) shard_ranks.push_back(rank);
    if (rank % group_size == world.rank() % group_size) replica_ranks.push_back(rank);
  }
  const auto gather = world.split(shard_ranks, "gather");
  const auto reduce = world.split(shard_ranks, "reduce");
  const auto replicas = world.split(replica_ranks, "replicas");
  FlatParameters flat(small_layout(),
                      {.compute_dtype = mode.dtype,
                       .masters = mode.masters,
                       .gradient_dtype = mode.gradients,
                       .sharded = mode.sharded,
                       .offload = mode.offload},
                      {gather.get(), reduce.get(), replicas.get()});
  return train(flat, world.rank(), mode.moments);
}

std::vector<Outcome> outcomes(int world_size, const Mode& mode, int group_size) {
  std::vector<Outcome> all(static_cast<size_t>(world_size));
  test::run_ranks(world_size, [&](comm::Group& world) {
    all[static_cast<size_t>(world.rank())] = train_in_world(world, mode, group_size);
  });
  return all;
}

void expect_same(const Outcome& found, const Outcome& expected) {
  EXPECT_EQ(found.square_sums, expected.square_sums);
  for (size_t i = 0; i < expected.masters.size(); ++i) {
    EXPECT_TRUE(found.masters[i].equal(expected.masters[i])) << "master " << i;
    EXPECT_TRUE(found.computed[i].equal(expected.computed[i])) << "value " << i;
  }
}

class FlatModes : public testing::TestWithParam<Mode> {
 protected:
  void SetUp() override {
    if (!comm::has_gloo()) GTEST_SKIP() << "built without Gloo's headers (libgloo-dev)";
  }
};

TEST_P(FlatModes, GivesTheBitsOfDataParallelism) {
  for (const int world_size : {1, 2, 4}) {
    const Mode plain = GetParam().unsharded();
    const Outcome expected = outcomes(world_size, plain, world_size)[0];
    for (const Outcome& found : outcomes(world_size, GetParam(), world_size))
      expect_same(found, expected);
  }
}

TEST_P(FlatModes, GivesTheSameBitsInShardGroups) {
  const Mode plain = GetParam().unsharded();
  const Outcome expected = outcomes(4, plain, 4)[0];
  for (const Outcome& found : outcomes(4, GetParam(), 2)) {
    for (size_t i = 0; i < expected.masters.size(); ++i)
      EXPECT_TRUE(found.masters[i].equal(expected.masters[i])) << "master " << i;
  }
}

constexpr Sharded kZero1{true, false, false}, kZero2{true, true, false}, kZero3{true, true, true};

Mode stored(const char* name, Sharded sharded, Offload offload, Masters masters,
            at::ScalarType gradients_and_moments) {
  return {
      name, sharded, offload, at::kBFloat16, masters, gradients_and_moments, gradients_and_moments};
}

INSTANTIATE_TEST_SUITE_P(
    Modes, FlatModes,
    testing::Values(
        Mode{"zero1", kZero1, {}}, Mode{"zero2", kZero2, {}}, Mode{"zero3", kZero3, {}},
        Mode{"zero3_bf16", kZero3, {}, at::kBFloat16},
        Mode{"zero2_bf16", kZero2, {}, at::kBFloat16}, Mode{"zero1_fp16", kZero1, {}, at::kHalf},
        Mode{"none_offload_states", {}, {true, false}},
        Mode{"none_offload_all_bf16", {}, {true, true}, at::kBFloat16},
        Mode{"zero1_offload_states", kZero1, {true, false}},
        Mode{"zero2_offload_states", kZero2, {true, false}},
        Mode{"zero3_offload_all", kZero3, {true, true}},
        Mode{"zero3_offload_all_bf16", kZero3, {true, true}, at::kBFloat16},
        stored("zero1_split", kZero1, {}, Masters::kSplit, at::kFloat),
        stored("zero2_split_bf16", kZero2, {}, Masters::kSplit, at::kBFloat16),
        stored("zero3_split_bf16", kZero3, {}, Masters::kSplit, at::kBFloat16),
        stored("none_split_offload_states", {}, {true, false}, Masters::kSplit, at::kBFloat16),
        stored("zero3_split_offload_all", kZero3, {true, true}, Masters::kSplit, at::kFloat),
        stored("zero1_none_bf16", kZero1, {}, Masters::kNone, at::kBFloat16),
        stored("zero2_none_offload_states", kZero2, {true, false}, Masters::kNone, at::kFloat),
        stored("zero3_none_bf16", kZero3, {}, Masters::kNone, at::kBFloat16),
        stored("zero3_float32_bf16_gradients", kZero3, {}, Masters::kFloat32, at::kBFloat16)),
    [](const auto& mode) { return std::string(mode.param.name); });

// In data parallelism the gradient is the sum over ranks.
TEST(FlatParameters, DataParallelGradientsAreTheSumOverRanks) {
  if (!comm::has_gloo()) GTEST_SKIP() << "built without Gloo's headers (libgloo-dev)";
  test::run_ranks(3, [](comm::Group& world) {
    FlatParameters flat(small_layout(), {}, {&world, &world, nullptr});
    work_micro_batch(flat, world.rank(), 0, 1);
    flat.finish_gradients();
    for (size_t i = 0; i < flat.size(); ++i) {
      at::Tensor expected = at::zeros_like(flat.gradient(i));
      for (int rank = 0; rank < 3; ++rank) fill_gradient(expected, rank, 0, 1, i);
      EXPECT_TRUE(flat.gradient(i).equal(expected)) << i;
    }
  });
}

// Two shard groups of two ranks: the groups hold the same two parts.
TEST(FlatParameters, EachPartOfHybridShardsHasOneWriter) {
  if (!comm::has_gloo()) GTEST_SKIP() << "built without Gloo's headers (libgloo-dev)";
  std::atomic<int> num_writers = 0;
  test::run_ranks(4, [&](comm::Group& world) {
    const int first = world.rank() / 2 * 2, column = world.rank() % 2;
    const auto gather = world.split({first, first + 1}, "gather"),
               reduce = world.split({first, first + 1}, "reduce"),
               replicas = world.split({column, column + 2}, "replicas");
    const FlatParameters flat(small_layout(), {.sharded = kZero3},
                              {gather.get(), reduce.get(), replicas.get()});
    EXPECT_EQ(flat.num_state_parts(), 2);
    if (!flat.is_copy()) ++num_writers;
  });
  EXPECT_EQ(num_writers, 2);
}

// Each of four numbers is 256 on one rank and 1 on three: 259, which bfloat16 rounds to 260. Added
// up in bfloat16, 256 + 1 is 256.
TEST(FlatParameters, NarrowGradientsAreSummedOverReplicasInFloat32) {
  if (!comm::has_gloo()) GTEST_SKIP() << "built without Gloo's headers (libgloo-dev)";
  test::run_ranks(4, [](comm::Group& world) {
    FlatParameters flat({{{4}, 0, true}},
                        {.compute_dtype = at::kBFloat16, .gradient_dtype = at::kBFloat16},
                        {nullptr, nullptr, &world});
    flat.begin_step();
    flat.open_gradients(0);
    flat.gradient(0).fill_(1);
    flat.gradient(0)[world.rank()].fill_(256);
    flat.close_gradients(0);
    flat.finish_gradients();
    EXPECT_TRUE(flat.gradient(0).eq(260).all().item<bool>()) << flat.gradient(0);
  });
}

// An embedding, four blocks of one size, and a head.
std::vector<Parameter> six_units() {
  return {{{5, 70}, 0, true},  {{70, 70}, 1, true}, {{70, 70}, 2, true},
          {{70, 70}, 3, true}, {{70, 70}, 4, true}, {{9, 70}, 5, true}};
}

void expect_none_held(const FlatParameters& flat) {
  for (size_t i = 0; i < flat.size(); ++i) EXPECT_ANY_THROW(flat.compute(i)) << i;
  for (const std::vector<int64_t>& sizes : {flat.spare_values(), flat.spare_gradients()}) {
    EXPECT_FALSE(sizes.empty());
    for (const int64_t size : sizes) EXPECT_LE(std::count(sizes.begin(), sizes.end(), size), 2);
  }
}

TEST(FlatParameters, GatheredUnitsAreFreedAfterUse) {
  if (!comm::has_gloo()) GTEST_SKIP() << "built without Gloo's headers (libgloo-dev)";
  for (const Offload offload : {Offload{}, Offload{true, true}}) {
    test::run_ranks(2, [&](comm::Group& world) {
      const auto reduce = world.split({0, 1}, "reduce");
      FlatParameters flat(six_units(), {.sharded = kZero3, .offload = offload},
                          {&world, reduce.get(), nullptr});
      Optimizer optimizer(flat, {});
      for (int step = 0; step < 2; ++step) {
        flat.begin_step();
        for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
          work_micro_batch(flat, world.rank(), step, micro_batch);
          expect_none_held(flat);
        }
        flat.finish_gradients();
        optimizer.step(0.01);
        expect_none_held(flat);
      }
    });
  }
}

// A larger unit used the buffer of the embedding's gradient before.
TEST(FlatParameters, TheGapsOfAReusedBufferDoNotEnterTheNorm) {
  if (!comm::has_gloo()) GTEST_SKIP() << "built without Gloo's headers (libgloo-dev)";
  test::run_ranks(2, [](comm::Group& world) {
    const auto reduce = world.split({0, 1}, "reduce");
    std::vector<double> square_sums;
    for (const Sharded sharded : {Sharded{}, kZero2}) {
      FlatParameters flat(six_units(), {.sharded = sharded}, {&world, reduce.get(), nullptr});
      flat.begin_step();
      work_micro_batch(flat, world.rank(), 0, 1);
      flat.finish_gradients();
      square_sums.push_back(flat.gradient_square_sum().item<double>());
    }
    EXPECT_EQ(square_sums[0], square_sums[1]);
  });
}

// The barrier ends the gather of the old values.
TEST(FlatParameters, AStepReplacesPrefetchedValues) {
  if (!comm::has_gloo()) GTEST_SKIP() << "built without Gloo's headers (libgloo-dev)";
  test::run_ranks(2, [](comm::Group& world) {
    const auto reduce = world.split({0, 1}, "reduce");
    FlatParameters flat(six_units(), {.sharded = kZero3}, {&world, reduce.get(), nullptr});
    Optimizer optimizer(flat, {});
    flat.begin_step();
    work_micro_batch(flat, world.rank(), 0, 1);
    flat.finish_gradients();
    flat.prefetch(2);
    world.barrier();
    optimizer.step(0.01);
    flat.gather(2);
    EXPECT_TRUE(flat.compute(2).equal(master(flat, 2)));
    EXPECT_GT(flat.compute(2).abs().max().item<double>(), 0.005);
  });
}

// Rank 0 of two ranks with the same data; counts the reductions between their start and their
// wait().
class CountingGroup final : public comm::Group {
 public:
  int rank() const override { return 0; }
  int size() const override { return 2; }
  std::string name() const override { return "counting"; }
  void all_reduce(at::Tensor tensor) override { tensor.mul_(2); }
  comm::Pending start_all_gather(at::Tensor all_WS, at::Tensor mine_S) override {
    all_WS.copy_(mine_S.repeat({2}));
    return {};
  }
  comm::Pending start_reduce_scatter(at::Tensor mine_S, at::Tensor all_WS) override {
    mine_S.copy_(all_WS.narrow(0, 0, mine_S.numel()) * 2);
    most_ = std::max(most_, ++under_way_);
    return comm::Pending([this] { --under_way_; });
  }
  comm::Pending start_send(at::Tensor, int) override { return {}; }
  comm::Pending start_receive(at::Tensor, int) override { return {}; }
  void barrier() override {}
  void wait_for_first() override {}
  std::unique_ptr<comm::Group> split(const std::vector<int>&, const std::string&) override {
    return nullptr;
  }

  int under_way() const { return under_way_; }
  int most() const { return most_; }

 private:
  int under_way_ = 0;
  int most_ = 0;
};

TEST(FlatParameters, ConcurrentReductionsAreLimited) {
  for (const Sharded sharded : {Sharded{}, kZero1, kZero2, kZero3}) {
    CountingGroup group;
    FlatParameters flat(six_units(), {.sharded = sharded}, {&group, &group, nullptr});
    flat.begin_step();
    work_micro_batch(flat, 0, 0, 1);
    flat.finish_gradients();
    EXPECT_EQ(group.most(), 2);
    EXPECT_EQ(group.under_way(), 0);
  }
}

TEST(FlatParameters, ShardedBuffersAreNotHeldWhole) {
  if (!comm::has_gloo()) GTEST_SKIP() << "built without Gloo's headers (libgloo-dev)";
  test::run_ranks(2, [](comm::Group& world) {
    FlatParameters flat(small_layout(), {.sharded = kZero3}, {&world, &world, nullptr});
    for (int unit = 0; unit < flat.num_units(); ++unit) {
      const int64_t whole = flat.layout().units()[static_cast<size_t>(unit)].size;
      EXPECT_EQ(flat.states()[static_cast<size_t>(unit)].master_S.numel(), whole / 2);
      EXPECT_EQ(flat.states()[static_cast<size_t>(unit)].gradient_S.numel(), whole / 2);
    }
    EXPECT_ANY_THROW(flat.compute(0));  // no unit is gathered
  });
}

}  // namespace
}  // namespace xffl::shard
