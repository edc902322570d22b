// The contract of a row of server_optimizers(), on an optimizer with settings and a state.
#include "xffl/aggregate/server_optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models.h"
#include "support/temp_dir.h"
#include "xffl/aggregate/aggregate.h"

namespace xffl::aggregate {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// FedAvgM (Hsu et al., 2019): velocity = momentum * velocity + delta; master += rate * velocity.
void momentum_step(const ServerPiece& piece) {
  for (size_t i = 0; i < piece.values.size(); ++i) {
    const double delta = piece.deltas ? piece.values[i] : piece.values[i] - piece.master[i];
    float& velocity = piece.state[0][i];
    velocity = static_cast<float>(piece.settings[1] * velocity + delta);
    piece.values[i] = piece.master[i] + piece.settings[0] * velocity;
  }
}

constexpr ServerSetting kSettings[] = {{.name = "rate", .default_value = 1},
                                       {.name = "momentum", .default_value = 0.5}};
constexpr std::string_view kState[] = {"velocity"};
constexpr ServerOptimizer kMomentum{
    .name = "momentum", .settings = kSettings, .state = kState, .step = momentum_step};

class ServerOptimizers : public testing::Test {
 protected:
  Input input(const std::string& name, const Tensors& tensors, double weight = 1) {
    return {write_model(dir_ / name, tensors), weight, name, name};
  }
  std::vector<float> velocity(const std::string& master, const std::string& tensor) {
    const checkpoint::SafetensorsFile file(dir_ / master / "velocity.safetensors");
    std::vector<float> values(static_cast<size_t>(file.spec(tensor).num_elements()));
    to_float(file.data(tensor), file.spec(tensor).dtype, values);
    return values;
  }
  const test::TempDir dir_;
};

TEST_F(ServerOptimizers, TheFirstRowIsTheDefaultAndUnknownNamesListTheRows) {
  EXPECT_EQ(server_optimizers().front().name, "fedavg");
  for (const ServerOptimizer& each : server_optimizers()) {
    EXPECT_EQ(&server_optimizer(each.name), &each);
    EXPECT_NE(each.step, nullptr) << each.name;
    EXPECT_EQ(each.defaults().size(), each.settings.size());
  }
  const Thrown thrown = thrown_by([] { server_optimizer("fedsgd"); });
  EXPECT_EQ(thrown.kind, ErrorKind::kConfig);
  EXPECT_THAT(thrown.message, HasSubstr("'fedsgd'; there are: fedavg"));
}

TEST_F(ServerOptimizers, TheStateOfAStepIsTheInputOfTheNextStep) {
  write_model(dir_ / "m0", {{"w", {{2}, {1, 2}}}});
  const Input delta = input("delta", {{"w", {{2}, {4, -8}}}});
  const Input weights = input("weights", {{"w", {{2}, {5, 2}}}});
  const ServerRule rule{kMomentum, {0.25, 0.5}};
  const auto step = [&](const char* from, const char* to, const Input& update, bool deltas) {
    server_step(dir_ / from, {update}, deltas, Dtype::kF32, dir_ / to,
                dir_ / (std::string("g") + to), {}, rule);
  };
  step("m0", "m1", delta, true);
  EXPECT_THAT(velocity("m1", "w"), ElementsAre(4, -8));
  EXPECT_THAT(read_tensor(dir_ / "m1", "w"), ElementsAre(2, 0));
  step("m1", "m2", delta, true);
  EXPECT_THAT(velocity("m2", "w"), ElementsAre(6, -12));
  EXPECT_THAT(read_tensor(dir_ / "m2", "w"), ElementsAre(3.5, -3));
  step("m2", "m3", weights, false);
  EXPECT_THAT(velocity("m3", "w"), ElementsAre(4.5, -1)) << "0.5 * 6 + (5 - 3.5), ...";
  EXPECT_THAT(read_tensor(dir_ / "m3", "w"), ElementsAre(4.625, -3.25));
  EXPECT_THAT(read_tensor(dir_ / "gm3", "w"), ElementsAre(4.625, -3.25));
}

TEST_F(ServerOptimizers, TheManifestOfTheMasterNamesTheState) {
  write_model(dir_ / "m0", {{"w", {{1}, {1}}}});
  const Input delta = input("delta", {{"w", {{1}, {1}}}});
  const ServerRule rule{kMomentum};
  const auto step = [&](const char* from, const char* to) {
    server_step(dir_ / from, {delta}, true, Dtype::kBF16, dir_ / to, dir_ / (std::string("g") + to),
                {}, rule);
  };
  step("m0", "m1");
  const checkpoint::Manifest manifest = checkpoint::read_manifest(dir_ / "m1");
  EXPECT_NE(manifest.find("velocity.safetensors"), nullptr);
  EXPECT_EQ(manifest, checkpoint::make_manifest(dir_ / "m1"));
  EXPECT_EQ(checkpoint::read_manifest(dir_ / "gm1").find("velocity.safetensors"), nullptr);
  std::filesystem::remove(dir_ / "m1" / "velocity.safetensors");
  EXPECT_EQ(thrown_by([&] { step("m1", "m2"); }).kind, ErrorKind::kNotFound)
      << "a lost state is not zeros";
}

TEST_F(ServerOptimizers, TheBytesOfTheStateDoNotDependOnThreads) {
  write_model(dir_ / "master", some_model(9));
  const Input a = input("a", some_model(1, Dtype::kBF16), 7);
  for (int threads = 1; threads <= 3; ++threads) {
    const std::string n = std::to_string(threads);
    server_step(dir_ / "master", {a}, true, Dtype::kBF16, dir_ / ("m" + n), dir_ / ("g" + n),
                {.num_threads = threads, .max_shard_bytes = 4096}, {kMomentum});
    server_step(dir_ / ("m" + n), {a}, true, Dtype::kBF16, dir_ / ("n" + n), dir_ / ("h" + n),
                {.num_threads = threads}, {kMomentum});
    EXPECT_EQ(root_of(dir_ / ("n" + n)), root_of(dir_ / "n1"));
  }
  std::vector<float> expected = read_tensor(dir_ / "a", "embed.weight");
  for (float& value : expected) value = static_cast<float>(0.5 * value + value);
  EXPECT_EQ(velocity("n1", "embed.weight"), expected);
}

TEST_F(ServerOptimizers, AFlippedByteInTheStateOrTheMasterPublishesNothing) {
  const auto values = [](uint32_t seed) { return Tensors{{"w", {{300}, some_values(300, seed)}}}; };
  write_model(dir_ / "m0", values(1));
  const Input update = input("update", values(2));
  const ServerRule rule{kMomentum};
  const Stepped first =
      server_step(dir_ / "m0", {update}, true, Dtype::kBF16, dir_ / "m1", dir_ / "g1", {}, rule);
  const Options options{.hashes = std::make_shared<const checkpoint::Manifest>(first.master)};
  for (const bool deltas : {true, false})
    for (const char* name : {"velocity.safetensors", "model.safetensors"})
      for (const int part : {0, 7, 20, 60, 100}) {
        const auto path = dir_ / "m1" / name;
        const std::string good = read_file(path, 1 << 30);
        std::string bad = good;
        bad.at(std::min(good.size() - 1, good.size() * static_cast<size_t>(part) / 100)) ^= 16;
        write_file_atomic(path, bad);
        const Thrown thrown = thrown_by([&] {
          server_step(dir_ / "m1", {update}, deltas, Dtype::kBF16, dir_ / "m2", dir_ / "g2",
                      options, rule);
        });
        EXPECT_EQ(thrown.kind, ErrorKind::kCorrupt) << path << part;
        EXPECT_THAT(thrown.message, HasSubstr(path.string() + " is damaged"));
        EXPECT_FALSE(std::filesystem::exists(dir_ / "m2") || std::filesystem::exists(dir_ / "g2"));
        write_file_atomic(path, good);
      }
  const Stepped second = server_step(dir_ / "m1", {update}, true, Dtype::kBF16, dir_ / "m2",
                                     dir_ / "g2", options, rule);
  EXPECT_FALSE(second.master.find("velocity.safetensors")->block_xxh3.empty());
}

TEST_F(ServerOptimizers, RejectsAStateThatIsNotFiniteOrHasAnotherShape) {
  write_model(dir_ / "master", {{"w", {{1}, {1}}}});
  const Input delta = input("delta", {{"w", {{1}, {1}}}});
  const auto thrown = [&](const Tensor& state) {
    write_model(dir_ / "state", {{"w", state}});
    std::filesystem::rename(dir_ / "state/model.safetensors", dir_ / "master/velocity.safetensors");
    std::filesystem::remove_all(dir_ / "state");
    return thrown_by([&] {
      server_step(dir_ / "master", {delta}, true, Dtype::kBF16, dir_ / "m1", dir_ / "g1", {},
                  {kMomentum});
    });
  };
  EXPECT_EQ(thrown({{2}, {1, 1}}).kind, ErrorKind::kRejected);
  const Thrown infinite = thrown({{1}, {std::numeric_limits<float>::infinity()}});
  EXPECT_EQ(infinite.kind, ErrorKind::kRejected);
  EXPECT_THAT(infinite.message, HasSubstr("velocity"));
  EXPECT_FALSE(std::filesystem::exists(dir_ / "m1"));
}

}  // namespace
}  // namespace xffl::aggregate
