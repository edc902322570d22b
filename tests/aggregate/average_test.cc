#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <limits>
#include <set>
#include <thread>
#include <vector>

#include "models.h"
#include "support/failing_call.h"
#include "support/kernel_reads_ahead.h"
#include "support/refused_threads.h"
#include "support/temp_dir.h"
#include "support/unchecked_writer.h"
#include "xffl/aggregate/aggregate.h"

namespace xffl::aggregate {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class Average : public testing::Test {
 protected:
  Input input(const std::string& name, const Tensors& tensors, double weight = 1,
              uint64_t max_shard_bytes = 1 << 30) {
    return {write_model(dir_ / name, tensors, max_shard_bytes), weight, name, name};
  }
  Thrown thrown_by_average(std::vector<Input> inputs, Dtype dtype = Dtype::kF32) {
    const size_t before = num_entries(dir_.path());
    const Thrown thrown = thrown_by([&] { average_weights(inputs, dtype, dir_ / "out"); });
    EXPECT_EQ(num_entries(dir_.path()), before) << "something was left behind";
    return thrown;
  }

  const test::TempDir dir_;
};

TEST_F(Average, IsTheWeightedMeanOfHandPickedNumbers) {
  const Input a = input("a", {{"w", {{2, 2}, {1, 2, 3, -4}}}}, 1);
  const Input b = input("b", {{"w", {{2, 2}, {5, 2, -3, 8}}}}, 3);
  average_weights({a, b}, Dtype::kF32, dir_ / "out");
  EXPECT_THAT(read_tensor(dir_ / "out", "w"), ElementsAre(4, 2, -1.5, 5));
  EXPECT_EQ(checkpoint::read_manifest(dir_ / "out"), checkpoint::make_manifest(dir_ / "out"));
}

TEST_F(Average, RoundsOnceToBf16) {
  // 1 + 2^-8 is half-way between two bf16 numbers, and a number 2^-40 above it is rounded up.
  // Rounding to float32 first would lose the 2^-40 and go down, to even.
  const Input a = input("a", {{"w", {{1}, {1.0f + 0x1p-8f}}}}, 1);
  const Input b = input("b", {{"w", {{1}, {1.0f + 0x1p-8f + 0x1p-23f}}}}, 0x1p-17);
  average_weights({a, b}, Dtype::kBF16, dir_ / "out");
  EXPECT_THAT(read_tensor(dir_ / "out", "w"), ElementsAre(1.0f + 0x1p-7f));
}

TEST_F(Average, NeedsNoThreadBesidesItsOwn) {
  Tensors tensors;  // more blocks than the pipeline has places for
  for (int i = 0; i < 100; ++i)
    tensors["w" + std::to_string(i)] = {{2}, {static_cast<float>(i), 2}};
  const Input a = input("a", tensors, 1);
  const Input b = input("b", tensors, 1);
  average_weights({a, b}, Dtype::kF32, dir_ / "out");
  const std::string expected = checkpoint::read_manifest(dir_ / "out").root_sha256();
  int completed = 0;
  for (const int refusals : {1, 1000})
    for (int granted = 0;; ++granted) {
      fs::remove_all(dir_ / "out");
      const test::RefusedThreads refused(granted, refusals);
      average_weights({a, b}, Dtype::kF32, dir_ / "out");
      if (!refused.any()) break;
      ++completed;
      EXPECT_EQ(checkpoint::read_manifest(dir_ / "out").root_sha256(), expected);
    }
  EXPECT_GE(completed, 2);
}

TEST_F(Average, AServerStepNeedsNoThreadBesidesItsOwn) {
  const Tensors tensors{{"w", {{2}, {1, 2}}}};
  const Input a = input("a", tensors), b = input("b", tensors);
  const test::RefusedThreads refused(0, 1000);
  const Stepped stepped =
      server_step(a.folder, {a, b}, /*deltas=*/true, Dtype::kBF16, dir_ / "m1", dir_ / "g1");
  EXPECT_TRUE(refused.any());
  for (const char* folder : {"m1", "g1"})
    EXPECT_THAT(read_tensor(dir_ / folder, "w"), ElementsAre(2, 4)) << folder;
  EXPECT_THAT(stepped.cosines, ElementsAre(1, 1));
}

// The system refuses a thread after those of the files, and of some or all of the three outputs.
TEST_F(Average, AServerStepEndsTheThreadsOfItsOutputsWithoutAWorker) {
  const Tensors tensors{{"w", {{2}, {1, 2}}}};
  const Input a = input("a", tensors), b = input("b", tensors);
  const auto step = [&](int granted) {
    ::alarm(60);
    const test::RefusedThreads refused(granted, 1000);
    std::vector<double> cosines;
    const Thrown thrown = thrown_by([&] {
      cosines = server_step(a.folder, {a, b}, /*deltas=*/true, Dtype::kBF16, dir_ / "m1",
                            dir_ / "g1", {.num_threads = 1})
                    .cosines;
    });
    if (thrown.message != "no error was thrown" || cosines != std::vector<double>{1, 1}) return 1;
    return refused.any() ? 0 : 77;
  };
  int granted = 0, code = 0;
  for (; code == 0; ++granted) {
    for (const char* folder : {"m1", "g1"}) fs::remove_all(dir_ / folder);
    code = test::in_child([&] { return step(granted); });
  }
  EXPECT_EQ(code, 77) << "with " << granted - 1 << " threads";
  EXPECT_GT(granted, 3);
}

// A disk may damage a file before it is read back: the manifest has the hashes of the bytes in
// memory. Each file has at most two blocks, so no block leaves the memory before it is hashed.
TEST_F(Average, HashesNoFileByReadingItBack) {
  const Input a = input("a", some_model(1)), b = input("b", some_model(2));
  const int code = test::in_child([&] {
    if (!test::fail_calls(SYS_pread64, EIO)) return 77;
    const Thrown thrown = thrown_by([&] {
      average_weights({a, b}, Dtype::kBF16, dir_ / "out", {.max_shard_bytes = 300'000});
    });
    return thrown.message == "no error was thrown" ? 0 : 1;
  });
  if (code == 77) GTEST_SKIP() << "this system does not allow seccomp filters";
  ASSERT_EQ(code, 0);
  const checkpoint::Manifest found = checkpoint::make_manifest(dir_ / "out");
  EXPECT_EQ(checkpoint::read_manifest(dir_ / "out"), found);
  EXPECT_NE(found.find("tokenizer.json"), nullptr);
  EXPECT_NE(found.find("model.safetensors.index.json"), nullptr);
}

// The file is cut after the first block; without threads, no thread reads the mapping meanwhile.
TEST_F(Average, NamesAnInputThatIsCutDuringTheMean) {
  const Tensors tensors{{"w", {{600'000}, some_values(600'000, 1)}}};
  const Input a = input("a", tensors);
  for (const bool hashed : {false, true}) {
    Input b = input(hashed ? "hashed" : "b", tensors);
    const fs::path path = b.folder / "model.safetensors";
    if (hashed)
      b.hashes = checkpoint::rehash(b.folder, checkpoint::write_manifest(b.folder).root_sha256(),
                                    test::write_unchecked);
    const MappedFile file(path);
    if (!test::kernel_reads_ahead(file)) GTEST_SKIP() << "this kernel does not read ahead";
    const test::RefusedThreads refused(0, 1000);
    const Thrown thrown = thrown_by([&] {
      average_weights({a, b}, Dtype::kF32, dir_ / "out",
                      {.on_progress = [&](uint64_t, uint64_t) { fs::resize_file(path, 1000); }});
    });
    EXPECT_EQ(thrown.kind, hashed ? ErrorKind::kCorrupt : ErrorKind::kIo) << thrown.message;
    EXPECT_THAT(thrown.message, HasSubstr(path.string()));
    EXPECT_THAT(thrown.message, HasSubstr("cannot be read"));
  }
}

// A damaged master is rebuilt; another error of the disk ends the run.
TEST_F(Average, AMasterThatIsCutWhileItIsReadIsDamaged) {
  const Tensors tensors{{"w", {{600'000}, some_values(600'000, 1)}}};
  const Input a = input("a", tensors);
  for (const std::string name : {"stepped", "converted"}) {
    const fs::path master = input(name, tensors).folder, path = master / "model.safetensors";
    const Options options{
        .on_progress = [&](uint64_t, uint64_t) { fs::resize_file(path, 1000); },
        .hashes = checkpoint::rehash(master, checkpoint::write_manifest(master).root_sha256(),
                                     test::write_unchecked)};
    const MappedFile file(path);
    if (!test::kernel_reads_ahead(file)) GTEST_SKIP() << "this kernel does not read ahead";
    const test::RefusedThreads refused(0, 1000);
    const Thrown thrown = thrown_by([&] {
      if (name == "stepped")
        server_step(master, {a}, /*deltas=*/true, Dtype::kBF16, dir_ / "m1", dir_ / "g1", options);
      else
        convert(master, Dtype::kBF16, dir_ / "g0", options);
    });
    EXPECT_EQ(thrown.kind, ErrorKind::kCorrupt) << name << ": " << thrown.message;
    EXPECT_THAT(thrown.message, HasSubstr(path.string() + " is damaged"));
  }
}

TEST_F(Average, EveryOrderOfInputsGivesTheSameBytes) {
  std::vector<Input> inputs;
  const Dtype dtypes[] = {Dtype::kF32, Dtype::kBF16, Dtype::kF32, Dtype::kF16};
  for (uint32_t i = 0; i < 4; ++i)
    inputs.push_back(
        input(std::string(1, static_cast<char>('a' + i)), some_model(i, dtypes[i]), 0.1 + i));
  std::set<std::string> roots;
  int index = 0;
  do {
    const fs::path out = dir_ / ("out" + std::to_string(index++));
    average_weights(inputs, Dtype::kF32, out);
    roots.insert(root_of(out));
  } while (std::next_permutation(inputs.begin(), inputs.end(), [](const Input& a, const Input& b) {
    return a.order_key < b.order_key;
  }));
  EXPECT_EQ(index, 24);
  EXPECT_EQ(roots.size(), 1u);
}

TEST_F(Average, ThreadsAndInputShardsChangeNothing) {
  const Tensors first = some_model(1);
  const Tensors second = some_model(2);
  const Input a = input("a", first, 1);
  const Input b = input("b", second, 2, 1 << 30);
  const Input b_sharded = input("b-sharded", second, 2, 10'000);
  ASSERT_TRUE(fs::exists(b_sharded.folder / "model.safetensors.index.json"));
  std::set<std::string> roots;
  for (int threads = 1; threads <= 5; ++threads) {
    const fs::path out = dir_ / ("out" + std::to_string(threads));
    average_weights({a, threads % 2 == 0 ? b : b_sharded}, Dtype::kBF16, out,
                    {.num_threads = threads});
    roots.insert(root_of(out));
  }
  EXPECT_EQ(roots.size(), 1u);
}

TEST_F(Average, WritesShardsWithAnIndex) {
  const Input a = input("a", some_model(1));
  average_weights({a}, Dtype::kF32, dir_ / "out", {.max_shard_bytes = 500'000});
  EXPECT_TRUE(fs::exists(dir_ / "out" / "model.safetensors.index.json"));
  EXPECT_FALSE(fs::exists(dir_ / "out" / "model.safetensors"));
  EXPECT_EQ(read_tensor(dir_ / "out", "out.weight"), some_model(1).at("out.weight").values);
  EXPECT_EQ(checkpoint::read_manifest(dir_ / "out"), checkpoint::make_manifest(dir_ / "out"));
}

TEST_F(Average, EqualModelsGiveThatModelForAnyWeights) {
  Tensors tensors = some_model(3, Dtype::kBF16);
  tensors["norm.weight"].values[0] = -0.0f;
  const Input a = input("a", tensors, 0.1);
  const Input b = input("b", tensors, 0.7);
  const Input c = input("c", tensors, 1.0 / 3);
  average_weights({a, b, c}, Dtype::kBF16, dir_ / "out");
  const checkpoint::ModelFolder given(a.folder);
  const checkpoint::ModelFolder mean(dir_ / "out");
  for (const auto& spec : given.tensors())
    EXPECT_TRUE(std::ranges::equal(given.data(spec.name), mean.data(spec.name))) << spec.name;
}

TEST_F(Average, KeepsConfigAndTokenizerOfTheFirstByKey) {
  Input a = input("a", some_model(1));
  Input b = input("b", some_model(2));
  std::ofstream(b.folder / "tokenizer.json") << R"({"version": "b"})";
  a.order_key = "2";
  b.order_key = "1";
  average_weights({a, b}, Dtype::kF16, dir_ / "out");
  EXPECT_EQ(read_file(dir_ / "out" / "tokenizer.json", 1000), R"({"version": "b"})");
  const std::string config = read_file(dir_ / "out" / "config.json", 1000);
  EXPECT_THAT(config, HasSubstr(R"("torch_dtype": "float16")"));
  EXPECT_THAT(config, HasSubstr("custom"));
}

TEST_F(Average, ReportsProgressToTheEnd) {
  const Input a = input("a", some_model(1));
  uint64_t last = 0, total = 0;
  average_weights({a}, Dtype::kBF16, dir_ / "out",
                  {.on_progress = [&](uint64_t done, uint64_t all) {
                    EXPECT_GT(done, last);
                    last = done;
                    total = all;
                  }});
  EXPECT_EQ(last, total);
  EXPECT_EQ(total, 2u * (300'000 + 300 + 2100));
}

TEST_F(Average, RejectsOtherShapesMissingAndExtraTensorsByName) {
  const Input a = input("a", {{"v", {{2}, {1, 2}}}, {"w", {{2, 2}, {1, 2, 3, 4}}}});
  Thrown thrown =
      thrown_by_average({a, input("shape", {{"v", {{2}, {1, 2}}}, {"w", {{4, 1}, {1, 2, 3, 4}}}})});
  EXPECT_EQ(thrown.kind, ErrorKind::kRejected);
  for (const char* part : {"shape", "w", "[4, 1]", "[2, 2]"})
    EXPECT_THAT(thrown.message, HasSubstr(part));

  thrown = thrown_by_average({a, input("missing", {{"v", {{2}, {1, 2}}}})});
  EXPECT_EQ(thrown.kind, ErrorKind::kRejected);
  for (const char* part : {"missing", "w"}) EXPECT_THAT(thrown.message, HasSubstr(part));

  thrown = thrown_by_average(
      {a, input("extra",
                {{"v", {{2}, {1, 2}}}, {"w", {{2, 2}, {1, 2, 3, 4}}}, {"z.weight", {{1}, {1}}}})});
  EXPECT_EQ(thrown.kind, ErrorKind::kRejected);
  for (const char* part : {"extra", "z.weight"}) EXPECT_THAT(thrown.message, HasSubstr(part));
}

TEST_F(Average, NamesTheFirstNonFiniteElementForAnyThreads) {
  Tensors broken = some_model(1, Dtype::kBF16);
  broken["embed.weight"].values[200'001] = -INFINITY;
  broken["embed.weight"].values[299'999] = kNan;
  broken["norm.weight"].values[3] = kNan;
  const Input a = input("a", some_model(2));
  const Input bad = input("bad", broken);
  for (int threads = 1; threads <= 4; ++threads) {
    const Thrown thrown = thrown_by([&] {
      average_weights({a, bad}, Dtype::kF32, dir_ / "out", {.num_threads = threads});
    });
    EXPECT_EQ(thrown.kind, ErrorKind::kRejected);
    for (const char* part : {"bad", "embed.weight", "200001", "-inf"})
      EXPECT_THAT(thrown.message, HasSubstr(part));
  }
  EXPECT_EQ(num_entries(dir_.path()), 2u) << "only the inputs";
}

TEST_F(Average, RejectsAResultOutsideTheRangeOfItsType) {
  const Thrown thrown = thrown_by_average({input("a", {{"w", {{2}, {1, 1e6f}}}})}, Dtype::kF16);
  EXPECT_EQ(thrown.kind, ErrorKind::kRejected);
  for (const char* part : {"w", "element 1", "F16"}) EXPECT_THAT(thrown.message, HasSubstr(part));
}

TEST_F(Average, RejectsInvalidWeightsKeysAndTypes) {
  Input a = input("a", {{"w", {{1}, {1}}}});
  Input b = input("b", {{"w", {{1}, {2}}}});
  EXPECT_EQ(thrown_by_average({}).kind, ErrorKind::kRejected);
  for (const double weight : {0.0, -1.0, double{NAN}, double{INFINITY}}) {
    b.weight = weight;
    const Thrown thrown = thrown_by_average({a, b});
    EXPECT_EQ(thrown.kind, ErrorKind::kRejected);
    EXPECT_THAT(thrown.message, HasSubstr("the weight of b"));
  }
  b.weight = 1;
  b.order_key = a.order_key;
  EXPECT_THAT(thrown_by_average({a, b}).message, HasSubstr("order key 'a'"));

  checkpoint::ModelWriter(dir_ / "ints", {{"w", Dtype::kI64, {0}}}).finish();
  EXPECT_THAT(thrown_by_average({{dir_ / "ints", 1, "i", "ints"}}).message, HasSubstr("I64"));

  const Input c = input("c", {{"w", {{1}, {0.25f}}}}, 1.7e308);
  const Input d = input("d", {{"w", {{1}, {0.25f}}}}, 1.7e308);
  EXPECT_THAT(thrown_by_average({c, d}).message, HasSubstr("the sum of the weights overflows"));
}

TEST_F(Average, NeverReplacesAFolder) {
  const Input a = input("a", {{"w", {{1}, {1}}}});
  fs::create_directory(dir_ / "out");
  EXPECT_EQ(thrown_by_average({a}).kind, ErrorKind::kRejected);
}

TEST_F(Average, RemovesTemporaryFoldersOfDeadProcesses) {
  const Input a = input("a", {{"w", {{1}, {1}}}});
  fs::create_directory(dir_ / "out.tmp-1-1");  // pid 1 did not start at tick 1
  std::ofstream(dir_ / "out.tmp-1-1" / "model.safetensors.tmp") << "half";
  average_weights({a}, Dtype::kF32, dir_ / "out");
  EXPECT_EQ(num_entries(dir_.path()), 2u) << "the input and the result";
}

TEST_F(Average, ConvertKeepsValuesAndShapes) {
  const Input a = input("a", some_model(4, Dtype::kBF16));
  convert(a.folder, Dtype::kF32, dir_ / "master");
  EXPECT_EQ(read_tensor(dir_ / "master", "embed.weight"), read_tensor(a.folder, "embed.weight"));
  EXPECT_EQ(checkpoint::ModelFolder(dir_ / "master").spec("norm.weight").dtype, Dtype::kF32);
  convert(dir_ / "master", Dtype::kBF16, dir_ / "back");
  EXPECT_EQ(sha256_file(dir_ / "back" / "model.safetensors"),
            sha256_file(a.folder / "model.safetensors"));
}

// The check comes before the first write, not when half of a model has filled the disk.
TEST_F(Average, ReportsMissingDiskSpaceBeforeWriting) {
  const Input a = input("a", some_model(4, Dtype::kBF16)), master = input("master", some_model(4));
  const fs::path disk = dir_ / "disk";
  fs::create_directory(disk);
  Thrown thrown, by_step;
  bool mounted = false;
  std::thread([&] {  // in a mount namespace
    mounted = ::unshare(CLONE_NEWNS) == 0 &&
              ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
              ::mount("xffl", disk.c_str(), "tmpfs", 0, "size=2m") == 0;
    if (!mounted) return;
    thrown = thrown_by([&] { convert(a.folder, Dtype::kF32, disk / "master"); });
    by_step = thrown_by(
        [&] { server_step(master.folder, {a}, true, Dtype::kBF16, disk / "m1", disk / "g1"); });
  })
      .join();
  if (!mounted) GTEST_SKIP() << "no mount namespaces here";
  EXPECT_EQ(thrown.kind, ErrorKind::kIo);
  EXPECT_THAT(thrown.message, HasSubstr("not enough space in " + disk.string() + ": 2277076"));
  EXPECT_THAT(thrown.message, HasSubstr("bytes are needed, 20"));
  EXPECT_EQ(by_step.kind, ErrorKind::kIo);
  EXPECT_THAT(by_step.message, HasSubstr("not enough space in " + disk.string() + ": 2891326"))
      << "for the master and the published model";
}

}  // namespace
}  // namespace xffl::aggregate
