#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>

#include "models.h"
#include "support/recorded_syncs.h"
#include "support/temp_dir.h"
#include "support/unchecked_writer.h"
#include "xffl/aggregate/aggregate.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/base/process.h"
#include "xffl/checkpoint/lora.h"

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

// transformers 5 writes `dtype`, earlier releases `torch_dtype`.
TEST_F(ServerStep, TheConfigNamesTheTypeUnderBothNames) {
  const auto master = write_model(dir_ / "master", {{"w", {{1}, {1.0f}}}}, 1 << 30,
                                  R"({"model_type": "llama", "dtype": "float32"})");
  server_step(master, {input("a", {{"w", {{1}, {0.5f}}}})}, true, Dtype::kBF16, dir_ / "m1",
              dir_ / "g1");
  const Json config = parse_json(read_file(dir_ / "g1/config.json", 1000), "config.json");
  EXPECT_EQ(config["dtype"], "bfloat16");
  EXPECT_EQ(config["torch_dtype"], "bfloat16");
}

TEST_F(ServerStep, SmallDeltasAccumulateInTheFloat32Master) {
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

TEST_F(ServerStep, RejectsAModelOutOfThePublishedTypesRange) {
  const auto master = write_model(dir_ / "master", {{"w", {{2}, {60'000, 0}}}});
  const Input delta = input("delta", {{"w", {{2}, {8'000, 1}}}});
  EXPECT_EQ(test::kind_of(
                [&] { server_step(master, {delta}, true, Dtype::kF16, dir_ / "m1", dir_ / "g1"); }),
            ErrorKind::kRejected)
      << "the largest fp16 number is 65504";
  EXPECT_FALSE(std::filesystem::exists(dir_ / "m1"));
  EXPECT_FALSE(std::filesystem::exists(dir_ / "g1"));
}

TEST_F(ServerStep, OnlyDeadProcessesLoseTheirTemporaryFolders) {
  const auto master = write_model(dir_ / "master", {{"w", {{1}, {1}}}});
  const Input delta = input("delta", {{"w", {{1}, {2}}}});
  const std::string ticks = std::to_string(process_start_ticks(::getpid()).value());
  const auto ours = dir_ / ("m1.tmp-" + std::to_string(::getpid()) + "-" + ticks + ".other");
  const auto alive = dir_ / ("m1.tmp-1-" + std::to_string(process_start_ticks(1).value()));
  const auto dead = dir_ / "m1.tmp-1-987654321";
  for (const auto& folder : {ours, alive, dead}) std::filesystem::create_directory(folder);
  server_step(master, {delta}, true, Dtype::kF32, dir_ / "m1", dir_ / "g1");
  EXPECT_TRUE(std::filesystem::exists(alive));
  EXPECT_TRUE(std::filesystem::exists(ours)) << "it is not the name of a maker";
  EXPECT_FALSE(std::filesystem::exists(dead));
}

// The attempt failed for want of file descriptors, and could not remove its files either.
TEST_F(ServerStep, TakesNoFileOfAnEarlierAttemptOfThisProcess) {
  const auto master = write_model(dir_ / "master", {{"w", {{1}, {1}}}});
  const Input delta = input("delta", {{"w", {{1}, {2}}}});
  const std::string ticks = std::to_string(process_start_ticks(::getpid()).value());
  const auto earlier = dir_ / ("m1.tmp-" + std::to_string(::getpid()) + "-" + ticks);
  std::filesystem::create_directory(earlier);
  write_file_atomic(earlier / "vocab.json", "half");
  server_step(master, {delta}, true, Dtype::kF32, dir_ / "m1", dir_ / "g1");
  EXPECT_FALSE(std::filesystem::exists(earlier));
  EXPECT_FALSE(std::filesystem::exists(dir_ / "m1/vocab.json"));
}

TEST_F(ServerStep, WeightsReplaceTheMaster) {
  const auto master = write_model(dir_ / "master", {{"w", {{2}, {100, 100}}}});
  const Input a = input("a", {{"w", {{2}, {1, 2}}}}, 1);
  const Input b = input("b", {{"w", {{2}, {4, 8}}}}, 2);
  server_step(master, {b, a}, /*deltas=*/false, Dtype::kF16, dir_ / "m1", dir_ / "g1");
  EXPECT_THAT(read_tensor(dir_ / "m1", "w"), ElementsAre(3, 6));
  EXPECT_THAT(read_tensor(dir_ / "g1", "w"), ElementsAre(3, 6));
}

TEST_F(ServerStep, BytesDoNotDependOnThreadsOrOrder) {
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

TEST_F(ServerStep, MeasuresTheDirectionOfEachUpdate) {
  const auto master = write_model(dir_ / "master", {{"v", {{2}, {1, 1}}}, {"w", {{1}, {1}}}});
  const Input c = input("c", {{"v", {{2}, {3, 0}}}, {"w", {{1}, {0}}}}, 1);
  const Input a = input("a", {{"v", {{2}, {0, 4}}}, {"w", {{1}, {0}}}}, 2);
  const Input b = input("b", {{"v", {{2}, {-1, 0}}}, {"w", {{1}, {0}}}}, 2);
  const auto cosines = [&](std::vector<Input> updates, bool deltas = true) {
    static int count = 0;
    const std::string n = std::to_string(++count);
    return server_step(master, std::move(updates), deltas, Dtype::kF32, dir_ / ("m" + n),
                       dir_ / ("g" + n))
        .cosines;
  };
  using testing::DoubleNear;
  // The others of c: (-2, 8); of a: (1, 0); of b: (3, 8).
  EXPECT_THAT(cosines({c, a, b}),
              ElementsAre(DoubleNear(-2 / std::sqrt(68), 1e-6), DoubleNear(0, 1e-6),
                          DoubleNear(-3 / std::sqrt(73), 1e-6)))
      << "in the order of the list, not of the keys";
  EXPECT_THAT(cosines({c, b}), ElementsAre(DoubleNear(-1, 1e-6), DoubleNear(-1, 1e-6)));
  const Input opposite = input("d", {{"v", {{2}, {1, 0}}}, {"w", {{1}, {0}}}}, 2);
  EXPECT_EQ(cosines({b, opposite, a}).at(2), 0) << "the others of a cancel out";
  EXPECT_THAT(cosines({c}), testing::IsEmpty());
  EXPECT_THAT(cosines({c, a}, /*deltas=*/false), testing::IsEmpty());
}

TEST_F(ServerStep, DirectionsDoNotDependOnTheThreads) {
  const size_t count = 300'000;
  const std::vector<float> x = some_values(count, 1), y = some_values(count, 2);
  const auto master = write_model(dir_ / "master", {{"w", {{300'000}, some_values(count, 9)}}});
  const Input a = input("a", {{"w", {{300'000}, x}}}, 7);
  const Input b = input("b", {{"w", {{300'000}, y}}}, 11);
  double product = 0, of_x = 0, of_y = 0;
  for (size_t i = 0; i < count; ++i) {
    product += double(x[i]) * double(y[i]);
    of_x += double(x[i]) * double(x[i]);
    of_y += double(y[i]) * double(y[i]);
  }
  std::vector<double> first;
  for (int threads = 1; threads <= 4; ++threads) {
    const std::string n = std::to_string(threads);
    const std::vector<double> cosines =
        server_step(master, {a, b}, true, Dtype::kBF16, dir_ / ("m" + n), dir_ / ("g" + n),
                    {.num_threads = threads})
            .cosines;
    ASSERT_EQ(cosines.size(), 2u);
    for (const double cosine : cosines) EXPECT_NEAR(cosine, product / std::sqrt(of_x * of_y), 1e-6);
    if (threads == 1) first = cosines;
    EXPECT_EQ(cosines, first);
  }
}

// The flips reach every kind of byte: headers, both ends of tensors and blocks, configuration.
TEST_F(ServerStep, AFlippedByteInAnyInputPublishesNothing) {
  const auto hashed = [&](const std::string& name, uint32_t seed, Dtype dtype) {
    const auto folder =
        write_model(dir_ / name, {{"v", {{7}, some_values(7, seed), dtype}},
                                  {"w", {{300'000}, some_values(300'000, seed), dtype}}});
    return Input{folder, 1, name, name,
                 checkpoint::rehash(folder, checkpoint::write_manifest(folder).root_sha256(),
                                    test::write_unchecked)};
  };
  const Input master = hashed("master", 9, Dtype::kF32);
  const Input a = hashed("a", 1, Dtype::kBF16), b = hashed("b", 2, Dtype::kBF16);
  const auto step = [&] {
    return server_step(master.folder, {a, b}, true, Dtype::kBF16, dir_ / "m1", dir_ / "g1",
                       {.hashes = master.hashes});
  };
  for (const Input& input : {master, a, b})
    for (const auto& file : input.hashes->files)
      for (const uint64_t part : {0, 1, 7, 40, 99, 100}) {
        const auto path = input.folder / file.name;
        const std::string good = read_file(path, 1 << 30);
        std::string bad = good;
        bad.at(std::min(good.size() - 1, good.size() * part / 100)) ^= 16;
        write_file_atomic(path, bad);
        const Thrown thrown = thrown_by(step);
        EXPECT_EQ(thrown.kind, ErrorKind::kCorrupt) << path << part;
        EXPECT_THAT(thrown.message, HasSubstr(path.string() + " is damaged"));
        EXPECT_FALSE(std::filesystem::exists(dir_ / "m1") || std::filesystem::exists(dir_ / "g1"));
        write_file_atomic(path, good);
      }
  const Stepped stepped = step();
  EXPECT_EQ(stepped.master.root_sha256(), root_of(dir_ / "m1"));
  EXPECT_EQ(stepped.model.files.back().block_xxh3,
            checkpoint::make_manifest(dir_ / "g1").files.back().block_xxh3);
}

// A file that somebody has put beside a master is not of the run: a rebuilt model would lack it.
TEST_F(ServerStep, CopiesOnlyTheFilesThatWereWrittenWithTheMaster) {
  const Input update = input("a", {{"w", {{2}, {1, 2}}}});
  const auto master = write_model(dir_ / "master", {{"w", {{2}, {1, 2}}}});
  const checkpoint::Hashes hashes = checkpoint::rehash(
      master, checkpoint::write_manifest(master).root_sha256(), test::write_unchecked);
  for (const char* name : {"tokenizer.model", "vocab.json"}) write_file_atomic(master / name, "x");
  server_step(master, {update}, true, Dtype::kBF16, dir_ / "m1", dir_ / "g1", {.hashes = hashes});
  for (const char* folder : {"m1", "g1"}) {
    EXPECT_TRUE(std::filesystem::exists(dir_ / folder / "tokenizer.json"));
    EXPECT_FALSE(std::filesystem::exists(dir_ / folder / "tokenizer.model"));
    EXPECT_FALSE(std::filesystem::exists(dir_ / folder / "vocab.json"));
  }
}

// Llama 3's tokenizer.json has 9 MB.
TEST_F(ServerStep, CopiesATokenizerOfSeveralMegabytes) {
  const Input update = input("a", {{"w", {{2}, {1, 2}}}});
  const auto master = write_model(dir_ / "master", {{"w", {{2}, {1, 2}}}});
  const std::string tokenizer(9u << 20, 'x');
  write_file_atomic(master / "tokenizer.json", tokenizer);
  const checkpoint::Hashes hashes = checkpoint::rehash(
      master, checkpoint::write_manifest(master).root_sha256(), test::write_unchecked);
  server_step(master, {update}, true, Dtype::kBF16, dir_ / "m1", dir_ / "g1", {.hashes = hashes});
  for (const char* folder : {"m1", "g1"})
    EXPECT_TRUE(read_file(dir_ / folder / "tokenizer.json", 16u << 20) == tokenizer) << folder;
}

// Damage, which a restored master mends.
TEST_F(ServerStep, AFileThatVanishesDuringTheStepIsDamage) {
  const Input update = input("a", {{"w", {{2}, {1, 2}}}});
  for (const std::string name : {"config.json", "tokenizer.json"}) {
    const auto master = write_model(dir_ / "master", {{"w", {{2}, {1, 2}}}});
    const checkpoint::Hashes hashes = checkpoint::rehash(
        master, checkpoint::write_manifest(master).root_sha256(), test::write_unchecked);
    const Thrown thrown = thrown_by([&] {
      server_step(
          master, {update}, true, Dtype::kBF16, dir_ / "m1", dir_ / "g1",
          {.on_progress = [&](uint64_t, uint64_t) { std::filesystem::remove(master / name); },
           .hashes = hashes});
    });
    EXPECT_EQ(thrown.kind, ErrorKind::kCorrupt) << thrown.message;
    EXPECT_THAT(thrown.message, HasSubstr((master / name).string() + " is damaged"));
    std::filesystem::remove_all(master);
  }
}

// The journal names the models: after a power loss their files must have their bytes.
TEST_F(ServerStep, SyncsEveryFileOfBothModels) {
  const Input update = input("a", {{"w", {{2}, {1, 2}}}});
  const auto master = write_model(dir_ / "master", {{"w", {{2}, {1, 2}}}});
  test::synced_sizes.clear();
  server_step(master, {update}, true, Dtype::kBF16, dir_ / "m1", dir_ / "g1");
  for (const char* folder : {"m1", "g1"}) {
    EXPECT_EQ(num_entries(dir_ / folder), 4u) << "weights, configuration, tokenizer, manifest";
    for (const auto& file : std::filesystem::directory_iterator(dir_ / folder))
      EXPECT_TRUE(test::is_synced(file.path()));
    EXPECT_TRUE(test::is_synced(dir_ / folder)) << "the names of its files";
  }
}

TEST_F(ServerStep, RejectsUpdatesOfAnotherSchemaAndMastersOfAnotherType) {
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

TEST_F(ServerStep, AveragesAdapters) {
  checkpoint::LlamaConfig model;
  model.hidden_size = 8;
  model.num_layers = 1;
  model.num_heads = model.num_kv_heads = 2;
  model.head_dim = 4;
  const checkpoint::LoraConfig lora{2, 4, 0, {"q_proj"}};
  for (const auto& [name, seed] :
       std::map<std::string, uint64_t>{{"master", 1}, {"a", 2}, {"b", 3}})
    checkpoint::write_initial_lora(dir_ / name, model, lora, seed);
  server_step(dir_ / "master", {{dir_ / "a", 1, "a", "a"}, {dir_ / "b", 1, "b", "b"}},
              /*deltas=*/true, Dtype::kBF16, dir_ / "m1", dir_ / "g1");
  const std::string name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight";
  const auto values = [&](const char* folder) { return read_tensor(dir_ / folder, name); };
  EXPECT_FLOAT_EQ(values("m1")[5], values("master")[5] + (values("a")[5] + values("b")[5]) / 2);
  for (const char* folder : {"m1", "g1"}) {
    EXPECT_TRUE(checkpoint::ModelFolder(dir_ / folder).is_adapter());
    EXPECT_EQ(checkpoint::read_lora_config(dir_ / folder), lora);
    EXPECT_EQ(checkpoint::read_manifest(dir_ / folder), checkpoint::make_manifest(dir_ / folder));
    EXPECT_EQ(num_entries(dir_ / folder), 3u) << "weights, configuration, manifest";
  }
  EXPECT_EQ(checkpoint::ModelFolder(dir_ / "g1").spec(name).dtype, Dtype::kBF16);
  const checkpoint::Hashes hashes = checkpoint::rehash(
      dir_ / "m1", checkpoint::read_manifest(dir_ / "m1").root_sha256(), test::write_unchecked);
  EXPECT_EQ(thrown_by([&] {
              convert(dir_ / "m1", Dtype::kBF16, dir_ / "never",
                      {.on_progress =
                           [&](uint64_t, uint64_t) {
                             std::filesystem::remove(dir_ / "m1/adapter_config.json");
                           },
                       .hashes = hashes});
            }).kind,
            ErrorKind::kCorrupt)
      << "the configuration has vanished";
  average_weights({{dir_ / "a", 1, "a", "a"}, {dir_ / "b", 1, "b", "b"}}, Dtype::kF32,
                  dir_ / "mean");
  EXPECT_FLOAT_EQ(values("mean")[5], (values("a")[5] + values("b")[5]) / 2);
  checkpoint::write_initial_lora(dir_ / "c", model, {2, 8, 0, {"q_proj"}}, 4);
  EXPECT_EQ(thrown_by([&] {
              average_weights({{dir_ / "a", 1, "a", "a"}, {dir_ / "c", 1, "c", "c"}}, Dtype::kF32,
                              dir_ / "never");
            }).kind,
            ErrorKind::kRejected)
      << "another alpha";
  check_update(dir_ / "a", dir_ / "g1", /*delta=*/true);
  EXPECT_EQ(thrown_by([&] {
              check_update(write_model(dir_ / "whole", some_model(1)), dir_ / "g1", true);
            }).kind,
            ErrorKind::kRejected)
      << "a facility may not answer with a whole model";
}

}  // namespace
}  // namespace xffl::aggregate
