#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models.h"
#include "support/temp_dir.h"
#include "xffl/aggregate/aggregate.h"

namespace xffl::aggregate {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class ServerStep : public testing::Test {
 protected:
  Input input(const std::string& name, const Tensors& tensors, double weight = 1) {
    return {write_model(dir_ / name, tensors), weight, name, name};
  }
  const test::TempDir dir_;
};

TEST_F(ServerStep, AddsTheMeanDelta) {
  const auto master = write_model(dir_ / "master", {{"w", {{3}, {1.0f, 100.0f, -2.0f}}}});
  const Input a = input("a", {{"w", {{3}, {0.5f, 0.25f, 0}, Dtype::kBF16}}}, 1);
  const Input b = input("b", {{"w", {{3}, {-0.5f, 0.25f, 4}, Dtype::kF16}}}, 3);
  server_step(master, {a, b}, /*deltas=*/true, Dtype::kBF16, dir_ / "m1", dir_ / "g1");
  EXPECT_THAT(read_tensor(dir_ / "m1", "w"), ElementsAre(0.75f, 100.25f, 1.0f));
  // bf16 has steps of 0.5 there: 100.25 is a tie, which goes to the even neighbour.
  EXPECT_THAT(read_tensor(dir_ / "g1", "w"), ElementsAre(0.75f, 100.0f, 1.0f));
  EXPECT_EQ(checkpoint::ModelFolder(dir_ / "m1").spec("w").dtype, Dtype::kF32);
  EXPECT_EQ(checkpoint::ModelFolder(dir_ / "g1").spec("w").dtype, Dtype::kBF16);
  for (const char* folder : {"m1", "g1"})
    EXPECT_EQ(checkpoint::read_manifest(dir_ / folder), checkpoint::make_manifest(dir_ / folder));
  EXPECT_THAT(read_file(dir_ / "g1" / "config.json", 1000), HasSubstr("bfloat16"));
  EXPECT_THAT(read_file(dir_ / "m1" / "config.json", 1000), HasSubstr("float32"));
}

TEST_F(ServerStep, SmallDeltasAddUpInTheMasterThoughBf16CannotShowThem) {
  auto master = write_model(dir_ / "m0", {{"w", {{1}, {1.0f}}}});
  const Input delta = input("delta", {{"w", {{1}, {0x1p-10f}, Dtype::kBF16}}});
  for (int round = 1; round <= 5; ++round) {
    const auto next = dir_ / ("m" + std::to_string(round));
    server_step(master, {delta}, true, Dtype::kBF16, next, dir_ / ("g" + std::to_string(round)));
    master = next;
  }
  EXPECT_THAT(read_tensor(dir_ / "g1", "w"), ElementsAre(1.0f));
  EXPECT_THAT(read_tensor(dir_ / "g4", "w"), ElementsAre(1.0f)) << "a tie, to even";
  EXPECT_THAT(read_tensor(dir_ / "g5", "w"), ElementsAre(1.0f + 0x1p-7f));
  EXPECT_THAT(read_tensor(master, "w"), ElementsAre(1.0f + 5 * 0x1p-10f));
}

TEST_F(ServerStep, WeightsReplaceTheMaster) {
  const auto master = write_model(dir_ / "master", {{"w", {{2}, {100, 100}}}});
  const Input a = input("a", {{"w", {{2}, {1, 2}}}}, 1);
  const Input b = input("b", {{"w", {{2}, {4, 8}}}}, 2);
  server_step(master, {b, a}, /*deltas=*/false, Dtype::kF16, dir_ / "m1", dir_ / "g1");
  EXPECT_THAT(read_tensor(dir_ / "m1", "w"), ElementsAre(3, 6));
  EXPECT_THAT(read_tensor(dir_ / "g1", "w"), ElementsAre(3, 6));
}

TEST_F(ServerStep, IsTheSameForAllThreadsAndOrders) {
  const auto master = write_model(dir_ / "master", some_model(9));
  Input a = input("a", some_model(1, Dtype::kBF16), 7);
  Input b = input("b", some_model(2, Dtype::kBF16), 11);
  for (int threads = 1; threads <= 3; ++threads) {
    const std::string n = std::to_string(threads);
    server_step(master, {a, b}, true, Dtype::kBF16, dir_ / ("m" + n), dir_ / ("g" + n),
                {.num_threads = threads});
    std::swap(a, b);
    EXPECT_EQ(root_of(dir_ / ("m" + n)), root_of(dir_ / "m1"));
    EXPECT_EQ(root_of(dir_ / ("g" + n)), root_of(dir_ / "g1"));
  }
}

TEST_F(ServerStep, RefusesUpdatesOfAnotherSchemaAndMastersOfAnotherType) {
  const auto master = write_model(dir_ / "master", {{"w", {{2}, {1, 2}}}});
  const auto bf16 = write_model(dir_ / "bf16", {{"w", {{2}, {1, 2}, Dtype::kBF16}}});
  const Input good = input("good", {{"w", {{2}, {1, 2}}}});
  const Input other = input("other", {{"w", {{3}, {1, 2, 3}}}});
  const size_t before = num_entries(dir_.path());
  const auto message = [&](const std::filesystem::path& base, const Input& update) {
    const Thrown thrown = thrown_by(
        [&] { server_step(base, {update}, true, Dtype::kBF16, dir_ / "m1", dir_ / "g1"); });
    EXPECT_EQ(thrown.kind, ErrorKind::kRejected);
    return thrown.message;
  };
  EXPECT_THAT(message(master, other), HasSubstr("[3]"));
  EXPECT_THAT(message(bf16, good), HasSubstr("expected F32"));
  EXPECT_EQ(num_entries(dir_.path()), before);
}

}  // namespace
}  // namespace xffl::aggregate
