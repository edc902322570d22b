#include "checkpoint_files.h"

#include <gtest/gtest.h>

#include <fstream>

#include "checkpoint_json.h"
#include "support/refused_threads.h"
#include "support/temp_dir.h"
#include "support/thrown.h"
#include "xffl/base/file.h"
#include "xffl/base/sha256.h"

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

}  // namespace
}  // namespace xffl::train
