#include "xffl/upkeep/local_retention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <functional>
#include <string>
#include <vector>

#include "support/temp_dir.h"
#include "support/thrown.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/checkpoint/block_hashes.h"

namespace xffl::upkeep {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::UnorderedElementsAre;

class LocalFiles : public testing::Test {
 protected:
  // The files that a run has after the publication of round `newest`.
  void publish(int newest) {
    for (int round = 0; round <= newest; ++round) {
      if (fs::exists(folder_.round(round))) continue;
      for (const fs::path& model : {folder_.global(round), folder_.master(round)}) {
        write(model / "model.safetensors");
        write(checkpoint::block_hashes_path(model));
      }
      for (const char* name : {"alba", "brno"}) {
        if (round == 0) continue;
        write(folder_.facility(round, FacilityName(name)) / "update/model.safetensors");
        write(folder_.facility(round, FacilityName(name)) / "update.blocks");
        write(folder_.facility(round, FacilityName(name)) / "report.json");
      }
    }
  }
  static void write(const fs::path& file) {
    make_dirs(file.parent_path());
    write_file_atomic(file, "x");
  }
  template <class Path>
  std::vector<int> rounds_with(const Path& path) const {
    std::vector<int> rounds;
    for (int round = 0; round <= 12; ++round)
      if (fs::exists(path(round))) rounds.push_back(round);
    return rounds;
  }
  std::vector<int> models() const {
    return rounds_with([&](int round) { return folder_.global(round); });
  }
  std::vector<int> masters() const {
    return rounds_with([&](int round) { return folder_.master(round); });
  }
  std::vector<int> updates(const char* name = "brno") const {
    return rounds_with(
        [&](int round) { return folder_.facility(round, FacilityName(name)) / "update"; });
  }

  static void without_file_descriptors(const std::function<void()>& body) {
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
    const rlimit none{0, before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
    body();
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  }

  LocalRetention retention() {
    return {policy_, folder_, [this] { ++checks_; }};
  }

  const test::TempDir dir_;
  const history::RunFolder folder_{dir_.path(), RunName("0001")};
  config::RoundPolicy policy_;
  int checks_ = 0;  // of the writer's epoch
};

TEST_F(LocalFiles, AllModelsAndUpdatesStayByDefault) {
  publish(6);
  retention().after(6);
  EXPECT_THAT(models(), ElementsAre(0, 1, 2, 3, 4, 5, 6));
  EXPECT_THAT(updates(), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(masters(), ElementsAre(4, 5, 6)) << "policy.keep_rounds is 2";
}

TEST_F(LocalFiles, KeepUpdatesLeavesTheNewestRounds) {
  policy_.keep_updates = 3;
  publish(6);
  retention().after(6);
  EXPECT_THAT(updates("alba"), ElementsAre(4, 5, 6));
  EXPECT_THAT(updates("brno"), ElementsAre(4, 5, 6));
  EXPECT_THAT(models(), ElementsAre(0, 1, 2, 3, 4, 5, 6)) << "another key";
  EXPECT_TRUE(fs::exists(folder_.facility(1, FacilityName("alba")) / "report.json"));
}

TEST_F(LocalFiles, KeepModelsLeavesTheNewestRoundsAndTheInitialModel) {
  policy_.keep_models = 3;
  publish(6);
  retention().after(6);
  EXPECT_THAT(models(), ElementsAre(0, 4, 5, 6));
  EXPECT_THAT(updates(), ElementsAre(1, 2, 3, 4, 5, 6)) << "another key";
}

TEST_F(LocalFiles, TheModelsInUseStay) {
  policy_.keep_models = 1;
  policy_.keep_updates = 1;
  publish(6);
  retention().after(6);
  EXPECT_THAT(models(), ElementsAre(0, 5, 6));
  EXPECT_THAT(updates(), ElementsAre(6));
}

// A damaged newest master is averaged again from the previous master and the updates of its round.
TEST_F(LocalFiles, TheSourcesOfTheNewestMasterStay) {
  policy_.keep_models = policy_.keep_updates = policy_.keep_rounds = 1;
  publish(6);
  retention().after(6);
  EXPECT_THAT(masters(), ElementsAre(5, 6));
  EXPECT_THAT(updates("alba"), ElementsAre(6));
  EXPECT_THAT(updates("brno"), ElementsAre(6));
}

TEST_F(LocalFiles, NoBlockHashesStayWithoutTheirFolder) {
  policy_.keep_models = policy_.keep_updates = 2;
  publish(6);
  retention().after(6);
  int with_folder = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder_.path()))
    if (entry.path().extension() == ".blocks") {
      EXPECT_TRUE(fs::exists(fs::path(entry.path()).replace_extension())) << entry.path();
      ++with_folder;
    }
  EXPECT_EQ(with_folder, 3 + 3 + 2 * 2) << "models, masters, updates";
}

TEST_F(LocalFiles, ALackOfFileDescriptorsDelaysRemovals) {
  policy_.keep_models = 2;
  publish(6);
  LocalRetention retention = this->retention();
  without_file_descriptors(
      [&] { EXPECT_EQ(test::kind_of([&] { retention.after(6); }), ErrorKind::kIo); });
  EXPECT_THAT(models(), ElementsAre(0, 1, 2, 3, 4, 5, 6));
  retention.after(6);  // as at the end of the run
  EXPECT_THAT(models(), ElementsAre(0, 5, 6));
  publish(7);
  retention.after(7);
  EXPECT_THAT(models(), ElementsAre(0, 6, 7));
  EXPECT_THAT(masters(), ElementsAre(5, 6, 7));
}

TEST_F(LocalFiles, UpdatesInAFolderThatCannotBeReadAreRemovedLater) {
  policy_.keep_rounds = 7;  // no other file is removed
  policy_.keep_updates = 2;
  publish(6);
  LocalRetention retention = this->retention();
  without_file_descriptors(
      [&] { EXPECT_EQ(test::kind_of([&] { retention.after(6); }), ErrorKind::kIo); });
  EXPECT_THAT(updates(), ElementsAre(1, 2, 3, 4, 5, 6));
  retention.after(7);
  EXPECT_THAT(updates("alba"), ElementsAre(6));
  EXPECT_THAT(updates("brno"), ElementsAre(6));
}

// A facility may leave an incomplete update when its round ends without it.
TEST_F(LocalFiles, IncompleteUpdatesGoAndReportsStay) {
  policy_.keep_updates = 1;
  publish(3);
  const fs::path archive = folder_.facility(1, FacilityName("alba"));
  for (const char* name :
       {"update.e7/model.safetensors.part", "update.damaged/model.safetensors", "job.json"})
    write(archive / name);
  retention().after(3);
  std::vector<std::string> left;
  for (const auto& entry : fs::directory_iterator(archive))
    left.push_back(entry.path().filename().string());
  EXPECT_THAT(left, UnorderedElementsAre("job.json", "report.json"));
}

// A facility whose updates are rejected in each round must not fill the disk.
TEST_F(LocalFiles, RejectedUpdatesStayForTwoRounds) {
  publish(6);
  const auto rejected = [&](int round) {
    return folder_.facility(round, FacilityName("alba")) / "refused-a1";
  };
  for (int round = 1; round <= 6; ++round) write(rejected(round) / "model.safetensors");
  retention().after(6);
  EXPECT_THAT(rounds_with(rejected), ElementsAre(5, 6));
  EXPECT_THAT(updates(), ElementsAre(1, 2, 3, 4, 5, 6)) << "accepted updates stay by default";
}

TEST_F(LocalFiles, AStopEndsTheRemovalsBetweenTwoFolders) {
  policy_.keep_updates = 1;
  publish(6);
  std::stop_source stop;
  LocalRetention slow(policy_, folder_, [&] {
    if (++checks_ == 3) stop.request_stop();
  });
  EXPECT_EQ(test::kind_of([&] { slow.after(6, stop.get_token()); }), ErrorKind::kCancelled);
  EXPECT_EQ(checks_, 3);
  slow.after(6);
  EXPECT_THAT(masters(), ElementsAre(4, 5, 6)) << "the next call continues";
  EXPECT_THAT(updates(), ElementsAre(6));
}

TEST_F(LocalFiles, EveryRemovalChecksTheWriter) {
  policy_.keep_models = policy_.keep_updates = 2;
  publish(6);
  LocalRetention lost(policy_, folder_,
                      [] { throw Error(ErrorKind::kBusy, "another coordinator"); });
  EXPECT_EQ(test::kind_of([&] { lost.after(6); }), ErrorKind::kBusy);
  EXPECT_THAT(models(), ElementsAre(0, 1, 2, 3, 4, 5, 6));
  EXPECT_THAT(masters(), ElementsAre(0, 1, 2, 3, 4, 5, 6));
  EXPECT_THAT(updates(), ElementsAre(1, 2, 3, 4, 5, 6));
  retention().after(6);
  EXPECT_EQ(checks_, 2 * (4 + 4 + 2 * 4)) << "folders and block hashes of masters, models, updates";
  retention().after(6);
  EXPECT_EQ(checks_, 2 * (4 + 4 + 2 * 4)) << "no file is left to remove";
}

// The round in progress has updates, and may have a model that is not published.
TEST_F(LocalFiles, LaterRoundsStay) {
  policy_.keep_models = policy_.keep_updates = 2;
  publish(7);
  retention().after(6);
  EXPECT_THAT(models(), ElementsAre(0, 5, 6, 7));
  EXPECT_THAT(updates(), ElementsAre(5, 6, 7));
}

TEST_F(LocalFiles, EachRoundRemovesOneMore) {
  policy_.keep_models = policy_.keep_updates = 2;
  LocalRetention retention = this->retention();
  for (int round = 1; round <= 9; ++round) {
    publish(round);
    retention.after(round);
    EXPECT_LE(updates().size(), 2u) << round;
    EXPECT_LE(models().size(), 3u) << round;
    EXPECT_LE(masters().size(), 3u) << round;
  }
  EXPECT_THAT(updates(), ElementsAre(8, 9));
}

TEST_F(LocalFiles, ARestartRemovesWhatIsLeft) {
  publish(9);
  policy_.keep_models = policy_.keep_updates = 4;
  retention().after(9);
  policy_.keep_models = policy_.keep_updates = 2;  // changed before the restart
  retention().after(9);
  EXPECT_THAT(models(), ElementsAre(0, 8, 9));
  EXPECT_THAT(updates(), ElementsAre(8, 9));
}

TEST_F(LocalFiles, TheForecastIsTheMostThatIsThereAtOnce) {
  EXPECT_EQ(rounds_on_disk(policy_, 500).models, 501);
  EXPECT_EQ(rounds_on_disk(policy_, 500).updates, 500);
  EXPECT_EQ(rounds_on_disk(policy_, 500).masters, 4);
  policy_.keep_models = 5;
  policy_.keep_updates = 3;
  EXPECT_EQ(rounds_on_disk(policy_, 500).models, 7) << "the initial model, 5, and the next one";
  EXPECT_EQ(rounds_on_disk(policy_, 500).updates, 4);
  EXPECT_EQ(rounds_on_disk(policy_, 2).models, 3);
  EXPECT_EQ(rounds_on_disk(policy_, 2).updates, 2);
  LocalRetention retention = this->retention();
  for (int round = 1; round <= 12; ++round) {
    publish(round);  // on top of the files that the round before has left
    const RoundsOnDisk most = rounds_on_disk(policy_, 12);
    EXPECT_LE(models().size(), static_cast<size_t>(most.models));
    EXPECT_LE(updates().size(), static_cast<size_t>(most.updates));
    EXPECT_LE(masters().size(), static_cast<size_t>(most.masters));
    retention.after(round);
  }
}

}  // namespace
}  // namespace xffl::upkeep
