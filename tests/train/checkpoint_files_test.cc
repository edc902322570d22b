#include "checkpoint_files.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint_json.h"
#include "group_exchange.h"
#include "shard/small_layout.h"
#include "support/ranks.h"
#include "support/refused_threads.h"
#include "support/temp_dir.h"
#include "support/thrown.h"
#include "xffl/base/file.h"
#include "xffl/base/sha256.h"
#include "xffl/comm/group.h"
#include "xffl/train/loaded_model.h"

namespace xffl::train {
namespace {

// Eight files are hashed at a time.
TEST(DamagedFile, IsFoundAmongManyParts) {
  const test::TempDir dir;
  Json files;
  std::vector<std::string> names;
  for (int i = 0; i < 20; ++i) {
    names.push_back("part-" + std::to_string(10 + i));
    const std::string bytes(100, static_cast<char>('a' + i));
    write_file_atomic(dir / names.back(), bytes);
    files[names.back()] = {{"size", bytes.size()}, {"sha256", sha256_hex(bytes)}};
  }
  EXPECT_EQ(damaged_file(dir.path(), files), "");
  for (const std::string& name : names) {
    const std::string good = read_file(dir / name, 1000);
    write_file_atomic(dir / name, std::string(100, '!'));
    EXPECT_EQ(damaged_file(dir.path(), files), name);
    write_file_atomic(dir / name, good.substr(1));
    EXPECT_EQ(damaged_file(dir.path(), files), name) << "shorter";
    write_file_atomic(dir / name, good);
  }
}

// A node at its limit of processes.
TEST(DamagedFile, IsFoundWithoutFurtherThreads) {
  const test::TempDir dir;
  Json files;
  for (const char* name : {"one", "two"}) {
    write_file_atomic(dir / name, name);
    files[name] = {{"size", 3}, {"sha256", sha256_hex(name)}};
  }
  const test::RefusedThreads refused(0, 1000);
  EXPECT_EQ(damaged_file(dir.path(), files), "");
  write_file_atomic(dir / "two", "xxx");
  EXPECT_EQ(damaged_file(dir.path(), files), "two");
  EXPECT_TRUE(refused.any());
}

TEST(DamagedFile, IsAMissingFileAndNotOneThatCannotBeExamined) {
  const test::TempDir dir;
  const Json files = {{"part", {{"size", 1}, {"sha256", sha256_hex("x")}}}};
  EXPECT_EQ(damaged_file(dir.path(), files), "part");
  std::filesystem::create_symlink(dir / "part", dir / "part");  // ELOOP
  EXPECT_EQ(test::kind_of([&] { damaged_file(dir.path(), files); }), ErrorKind::kIo);
}

// The second of two ranks, without the first one.
class SecondRank final : public comm::Group {
 public:
  int rank() const override { return 1; }
  int size() const override { return 2; }
  std::string name() const override { return "recording"; }
  void all_reduce(at::Tensor) override { calls.emplace_back("sum"); }
  comm::Pending start_all_gather(at::Tensor, at::Tensor) override { return {}; }
  comm::Pending start_reduce_scatter(at::Tensor, at::Tensor) override { return {}; }
  comm::Pending start_send(at::Tensor, int) override { return {}; }
  comm::Pending start_receive(at::Tensor, int) override { return {}; }
  void barrier() override {}
  void wait_for_first() override { calls.emplace_back("wait"); }
  std::unique_ptr<comm::Group> split(const std::vector<int>&, const std::string&) override {
    return comm::make_single_rank();
  }

  std::vector<std::string> calls;
};

// Without sharding the first rank alone writes the model, maybe for longer than the time-out of a
// sum.
TEST(CheckpointFiles, ARankWaitsForTheFirstOneBeforeEachSum) {
  const test::TempDir dir;
  const auto alone = comm::make_single_rank();
  const JobGroups groups(*alone, 1);
  LoadedModel model;
  model.stages.push_back({0, 2});
  model.parameters =
      std::make_unique<shard::FlatParameters>(shard::small_layout(), shard::FlatOptions{});
  UnitBuffers masters{"master", {}};
  for (const shard::UnitState& state : model.parameters->states())
    masters.units.push_back(state.master_S);
  const CheckpointFolder folder{dir / "step", dir / "step.tmp"};
  make_dirs(folder.temporary);
  SecondRank group;
  write_checkpoint(group, at::kCPU, folder, CheckpointParts(groups, model), {masters},
                   [] { return Json(); });
  ASSERT_FALSE(group.calls.empty());
  for (size_t i = 0; i < group.calls.size(); ++i)
    EXPECT_EQ(group.calls[i], i % 2 == 0 ? "wait" : "sum") << i;
}

// Two groups of three ranks write thirds, which one rank of a group reads, and the reverse. Whole
// numbers up to 256 are exact in bfloat16.
TEST(CheckpointFiles, ThirdsAndWholesAreReadAsEachOther) {
  if (!comm::has_gloo()) GTEST_SKIP() << "built without Gloo's headers (libgloo-dev)";
  constexpr int64_t kElements = 3 * shard::kPieceElements;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const test::TempDir dir;
    make_dirs(dir / "thirds");
    make_dirs(dir / "whole");
    test::run_ranks(6, [&](comm::Group& world) {
      const JobGroups groups(world, 2);
      const auto model_of = [&](bool sharded) {
        shard::FlatOptions options;
        options.compute_dtype = dtype;
        if (dtype == at::kBFloat16) options.masters = shard::Masters::kNone;
        options.sharded = {sharded, sharded, sharded};
        LoadedModel model;
        model.stages.push_back({0, 1});
        model.parameters = std::make_unique<shard::FlatParameters>(
            std::vector<shard::Parameter>{{{kElements}, 0, true}}, options,
            shard::Groups{&groups.inner(), &groups.inner(), nullptr, nullptr});
        return model;
      };
      const auto master_of = [](const LoadedModel& model) {
        return model.parameters->states().at(0).master_S;
      };
      const auto buffers_of = [&](const LoadedModel& model) {
        return std::vector<UnitBuffers>{{"master", {master_of(model)}}};
      };
      const LoadedModel thirds = model_of(true), whole = model_of(false);
      const CheckpointParts of_thirds(groups, thirds), of_whole(groups, whole);
      const at::Tensor values =
          at::arange(kElements, at::kFloat).remainder(251).add(groups.index()).to(dtype);
      const shard::Range mine = thirds.parameters->state_range(0);
      const at::Tensor third = values.narrow(0, mine.begin, mine.count);
      master_of(thirds).copy_(third);
      of_thirds.write(dir / "thirds", buffers_of(thirds));
      world.barrier();
      of_whole.read(dir / "thirds", of_thirds.num_parts(), buffers_of(whole));
      EXPECT_TRUE(master_of(whole).equal(values)) << dtype;
      of_whole.write(dir / "whole", buffers_of(whole));
      world.barrier();
      master_of(thirds).zero_();
      of_thirds.read(dir / "whole", of_whole.num_parts(), buffers_of(thirds));
      EXPECT_TRUE(master_of(thirds).equal(third)) << dtype;
      if (world.rank() == 0) {
        EXPECT_EQ(of_thirds.files(dir / "thirds").size(), 6u)
            << "damage of a missing one is hidden";
      }
    });
  }
}

TEST(CheckpointFiles, TheStateOfThousandsOfRanksIsRead) {
  constexpr int kParts = 4096;
  const test::TempDir dir;
  Json files = Json::object();
  for (int i = 0; i < kParts; ++i)
    files["part-" + std::to_string(i)] = {{"size", 1024}, {"sha256", std::string(64, 'a')}};
  const Json state = {{"of", {{"version", kOptimizerStateVersion}}},
                      {"round", 1},
                      {"name", "alba"},
                      {"num_parts", kParts},
                      {"outer_steps", 0},
                      {"counts", {{0, 0, 0, 0}}},
                      {"files", files}};
  write_file_atomic(dir / "state.json", state.dump());
  EXPECT_EQ(read_checkpoint_json(dir.path()), state);
}

TEST(CheckpointFiles, AStateWithAWrongFieldIsRefused) {
  const Json part = {{"size", 1}, {"sha256", std::string(64, 'a')}};
  Json good = {{"of", {{"version", kOptimizerStateVersion}}},
               {"round", 1},
               {"name", "alba"},
               {"num_parts", 1},
               {"outer_steps", 0},
               {"counts", {{0, 0, 0, 0}}}};
  good["files"]["part-1"] = part;
  EXPECT_NO_THROW(parse_checkpoint_json(good.dump(), "state.json"));
  const auto kind_after = [&](const std::function<void(Json&)>& change) {
    Json state = good;
    change(state);
    return test::kind_of([&] { parse_checkpoint_json(state.dump(), "state.json"); });
  };
  EXPECT_EQ(kind_after([](Json& state) { state["of"]["version"] = kOptimizerStateVersion - 1; }),
            ErrorKind::kUnsupported);
  const std::vector<std::function<void(Json&)>> changes{
      [](Json& state) { state["round"] = 0; },
      [](Json& state) { state["num_parts"] = 0; },
      [](Json& state) { state["outer_steps"] = -1; },
      [](Json& state) { state["counts"][0][0] = -1; },
      [](Json& state) { state["counts"][0].push_back(0); },
      [](Json& state) { state["counts"] = Json::array(); },
      [](Json& state) { state["files"]["part-1"]["size"] = -1; },
      [](Json& state) { state["files"]["part-1"]["sha256"] = std::string(63, 'a'); },
      [&](Json& state) { state["files"]["../part-1"] = part; },
      [&](Json& state) { state["files"][".part-1"] = part; }};
  for (size_t i = 0; i < changes.size(); ++i)
    EXPECT_EQ(kind_after(changes[i]), ErrorKind::kCorrupt) << i;
}

}  // namespace
}  // namespace xffl::train
