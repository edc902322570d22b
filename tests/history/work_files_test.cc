#include "xffl/history/work_files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <memory>
#include <thread>

#include "support/await.h"
#include "support/failing_call.h"
#include "support/temp_dir.h"
#include "support/thrown.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/history/run_history.h"

namespace xffl::history {
namespace {

namespace fs = std::filesystem;
using test::kind_of;

class WorkFiles : public testing::Test {
 protected:
  WorkFiles() { make_dirs(folder_.facility(2, FacilityName("alba"))); }

  fs::path model(const std::string& text, const std::string& name) const {
    const fs::path path = folder_.round(2) / name;
    make_dirs(path);
    write_file_atomic(path / "weights", text);
    return path;
  }
  static std::string weights(const fs::path& model) { return read_file(model / "weights", 100); }

  test::TempDir dir_;
  RunFolder folder_{dir_.path(), RunName("0001")};
};

TEST(WorkNames, HaveTheEpoch) {
  EXPECT_EQ(work_name("r0001/global", 7), "r0001/global.e7");
  EXPECT_EQ(epoch_of("global.e7"), 7);
  EXPECT_EQ(epoch_of("global.e12.tmp-3-4"), 12);
  EXPECT_EQ(epoch_of(".model.e7x.e8.part"), 8);
  for (const char* name : {"global", "global.e", "global.e0", "global.e-1", "global.e7x", "e7"})
    EXPECT_EQ(epoch_of(name), std::nullopt) << name;
}

TEST_F(WorkFiles, AFolderTakesThePlaceOfAnother) {
  const fs::path to = folder_.global(2);
  replace_folder(model("first", "global.e1"), to);
  EXPECT_EQ(weights(to), "first");
  replace_folder(model("second", "global.e2"), to);
  EXPECT_EQ(weights(to), "second");
  EXPECT_FALSE(fs::exists(folder_.round(2) / "global.e2")) << "it held the first one";
}

// As on NFS, which has no flags of a rename.
TEST_F(WorkFiles, AFolderTakesThePlaceOfAnotherWithoutAnExchange) {
  constexpr int kSkipped = 77;
  const fs::path to = folder_.global(2);
  const fs::path first = model("first", "global.e1"), second = model("second", "global.e2");
  const int code = test::in_child([&] {
    if (!test::fail_calls(SYS_renameat2, EINVAL)) return kSkipped;
    try {
      replace_folder(first, to);
      replace_folder(second, to);
      return 0;
    } catch (const Error& error) {
      return exit_code(error.kind());
    }
  });
  if (code == kSkipped) GTEST_SKIP() << "no system call filters here";
  EXPECT_EQ(code, 0);
  EXPECT_EQ(weights(to), "second");
}

// A coordinator is frozen between its check and its rename.
TEST_F(WorkFiles, ARenameAfterATakeOverHasNoEffect) {
  const fs::path to = folder_.global(2);
  const fs::path stale = model("stale", "global.e1");
  take_over_work_files(folder_, 2, 2);
  replace_folder(model("fresh", "global.e2"), to);
  EXPECT_EQ(kind_of([&] { replace_folder(stale, to); }), ErrorKind::kNotFound);
  EXPECT_EQ(weights(to), "fresh");
}

TEST_F(WorkFiles, OfEarlierEpochsAreRemovedEverywhereExceptForUpdates) {
  const fs::path alba = folder_.facility(2, FacilityName("alba"));
  const fs::path next = folder_.facility(3, FacilityName("alba"));
  make_dirs(folder_.round(0));
  make_dirs(next);
  write_file_atomic(next / "job.json.e1.tmp", "x");
  for (const fs::path& path :
       {folder_.path() / "CURRENT.e1", folder_.round(0) / "first.e1",
        folder_.round(2) / "global.packed.e1", alba / "job.json.e1.tmp",
        alba / "report.json.e2.tmp", alba / "report.json.e3.tmp", alba / "report.json"})
    write_file_atomic(path, "x");
  make_dirs(alba / "update.e1");
  write_file_atomic(alba / "update.e1.blocks", "hashes");
  const fs::path brno = folder_.facility(2, FacilityName("brno"));
  make_dirs(brno);
  write_file_atomic(brno / "update.e1.blocks", "hashes");
  make_dirs(alba / "update.e1.part");
  write_file_atomic(alba / "update.e1.part/.model.safetensors.part", "half");
  const UniqueFd open = open_file(alba / "update.e1.part/.model.safetensors.part", O_WRONLY);
  take_over_work_files(folder_, 2, 2);
  EXPECT_FALSE(fs::exists(folder_.path() / "CURRENT.e1"));
  EXPECT_FALSE(fs::exists(folder_.round(0) / "first.e1"));
  EXPECT_FALSE(fs::exists(folder_.round(2) / "global.packed.e1"));
  EXPECT_FALSE(fs::exists(alba / "job.json.e1.tmp"));
  EXPECT_FALSE(fs::exists(next / "job.json.e1.tmp"));
  EXPECT_TRUE(fs::exists(alba / "report.json.e2.tmp")) << "of the epoch itself";
  EXPECT_TRUE(fs::exists(alba / "report.json"));
  EXPECT_FALSE(fs::exists(alba / "update.e1.part"));
  EXPECT_FALSE(fs::exists(alba / "update.e1.blocks"));
  EXPECT_EQ(read_file(alba / "update.e2.blocks", 100), "hashes");
  EXPECT_TRUE(fs::is_empty(brno)) << "its update has its final name";
  const fs::path part = alba / "update.e2.part/.model.safetensors.part";
  ASSERT_EQ(::pwrite(open.get(), "LATE", 4, 0), 4);  // of the frozen coordinator
  EXPECT_EQ(read_file(part, 100), "half");

  remove_work_files(folder_, 2, 2);
  EXPECT_FALSE(fs::exists(alba / "update.e2.part"));
  EXPECT_FALSE(fs::exists(alba / "report.json.e2.tmp"));
  EXPECT_TRUE(fs::exists(alba / "report.json.e3.tmp")) << "of the next coordinator";
  EXPECT_TRUE(fs::exists(alba / "report.json"));
}

// A coordinator that was frozen goes on with its fetch after the take-over.
TEST_F(WorkFiles, OfSeveralUpdatesThatOfTheNewestEpochIsTakenOver) {
  const fs::path alba = folder_.facility(2, FacilityName("alba"));
  const auto update = [&](int epoch) { return alba / ("update.e" + std::to_string(epoch)); };
  for (int epoch = 1; epoch <= 3; ++epoch) {
    make_dirs(update(epoch));
    write_file_atomic(update(epoch) / ".model.safetensors.part", std::to_string(epoch));
  }
  take_over_work_files(folder_, 2, 4);
  EXPECT_EQ(read_file(update(4) / ".model.safetensors.part", 100), "3");
  for (int epoch = 1; epoch <= 3; ++epoch) EXPECT_FALSE(fs::exists(update(epoch))) << epoch;
}

// Copies of a large update would delay a command and need space.
TEST_F(WorkFiles, ACommandLeavesTheCopiesToTheNextCoordinator) {
  const fs::path alba = folder_.facility(2, FacilityName("alba"));
  const auto part = [&](int epoch) {
    return alba / ("update.e" + std::to_string(epoch)) / ".model.safetensors.part";
  };
  make_dirs(part(1).parent_path());
  write_file_atomic(part(1), "half");
  const UniqueFd open = open_file(part(1), O_WRONLY);
  take_over_work_files(folder_, 2, 2, UnfinishedFiles::kLeave);
  EXPECT_FALSE(fs::exists(part(1)));
  ASSERT_EQ(::pwrite(open.get(), "LATE", 4, 0), 4);  // of the frozen coordinator
  EXPECT_EQ(read_file(part(2), 100), "LATE") << "the same file";
  take_over_work_files(folder_, 2, 3);
  ASSERT_EQ(::pwrite(open.get(), "last", 4, 0), 4);
  EXPECT_EQ(read_file(part(3), 100), "LATE");
}

// The run must start although the disk has no space for a second copy of a half-fetched update.
TEST_F(WorkFiles, APartFileThatCannotBeCopiedIsRemoved) {
  const fs::path alba = folder_.facility(2, FacilityName("alba"));
  const std::string large = ".model.safetensors.part", small = ".config.json.part";
  make_dirs(alba / "update.e1.part");
  write_file_atomic(alba / "update.e1.part" / large, std::string(1 << 20, 'x'));
  write_file_atomic(alba / "update.e1.part" / small, "half");
  const int code = test::in_child([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    rlimit little{};
    if (::getrlimit(RLIMIT_FSIZE, &little) != 0) return 98;
    little.rlim_cur = 700'000;
    if (::setrlimit(RLIMIT_FSIZE, &little) != 0) return 99;
    try {
      take_over_work_files(folder_, 2, 2);
      return 0;
    } catch (const std::exception&) {
      return 1;
    }
  });
  EXPECT_EQ(code, 0);
  const fs::path taken = alba / "update.e2.part";
  EXPECT_EQ(read_file(taken / small, 100), "half");
  EXPECT_FALSE(fs::exists(taken / large));
  EXPECT_FALSE(fs::exists(taken / (large + ".copy")));
}

TEST_F(WorkFiles, AStaleHistoryPublishesNothing) {
  make_dirs(folder_.path());
  RunHistory stale(folder_.journal());
  stale.write_file(folder_.config(), "stale");
  stale.check_writer();
  model("stale", "global.e" + std::to_string(stale.epoch()));
  fs::remove(folder_.journal().string() + ".lock");
  RunHistory fresh(folder_.journal());
  EXPECT_GT(fresh.epoch(), stale.epoch());
  fresh.write_file(folder_.config(), "fresh");
  EXPECT_FALSE(stale.is_writer());
  EXPECT_TRUE(fresh.is_writer());
  EXPECT_EQ(kind_of([&] { stale.check_writer(); }), ErrorKind::kBusy);
  EXPECT_EQ(kind_of([&] { stale.write_file(folder_.config(), "late"); }), ErrorKind::kBusy);
  EXPECT_EQ(kind_of([&] { stale.publish_folder(folder_.global(2)); }), ErrorKind::kBusy);
  EXPECT_EQ(kind_of([&] { stale.record({}, RunCancelled{}); }), ErrorKind::kBusy);
  EXPECT_EQ(read_file(folder_.config(), 100), "fresh");
  EXPECT_FALSE(fs::exists(folder_.global(2)));
  EXPECT_FALSE(
      fs::exists(folder_.config().string() + ".e" + std::to_string(stale.epoch()) + ".tmp"));
}

// A file that a kill leaves in a model's folder would count as damage of the model.
TEST_F(WorkFiles, AManifestIsWrittenBesideItsFolder) {
  RunHistory history(folder_.journal());
  const fs::path global = model("text", "global");
  const std::string suffix = ".e" + std::to_string(history.epoch()) + ".tmp";
  // A folder at the place of a work file makes its creation fail.
  fs::create_directory(global / ("manifest.json" + suffix));
  history.file_writer()(global / "manifest.json", "{}");
  EXPECT_EQ(read_file(global / "manifest.json", 100), "{}");

  fs::create_directory(folder_.round(2) / ("global.manifest.json" + suffix));
  EXPECT_EQ(kind_of([&] { history.file_writer()(global / "manifest.json", "late"); }),
            ErrorKind::kIo);
  take_over_work_files(folder_, 2, history.epoch() + 1);
  EXPECT_FALSE(fs::exists(folder_.round(2) / ("global.manifest.json" + suffix)));
}

// A coordinator was killed while it wrote the block hashes of an update that it had fetched.
TEST_F(WorkFiles, AFileBesideAWorkNameHasTheEpochOnce) {
  RunHistory history(folder_.journal());
  const fs::path alba = folder_.facility(2, FacilityName("alba"));
  const fs::path hashes = history.work_name(alba / "update").string() + ".blocks";
  fs::create_directory(hashes.string() + ".tmp");  // in the way of the work file
  EXPECT_EQ(kind_of([&] { history.file_writer()(hashes, "hashes"); }), ErrorKind::kIo);
  fs::remove(hashes.string() + ".tmp");
  history.file_writer()(hashes, "hashes");
  EXPECT_EQ(read_file(hashes, 100), "hashes");
}

TEST_F(WorkFiles, AStaleHistoryChangesNoActivities) {
  make_dirs(folder_.path());
  const SystemClock clock;
  const FacilityName alba("alba"), brno("brno");
  const auto shows = [&](const FacilityName& name) {
    return test::await([&] { return read_activities(folder_.live()).contains(name); });
  };
  RunHistory stale(folder_.journal());
  auto late = std::make_unique<StatusFile>(folder_.live(), clock, &stale);
  late->show(1, alba, "running");
  ASSERT_TRUE(shows(alba));
  fs::remove(folder_.journal().string() + ".lock");
  RunHistory fresh(folder_.journal());
  StatusFile live(folder_.live(), clock, &fresh);
  live.show(1, brno, "running");
  ASSERT_TRUE(shows(brno));
  late->show(2, alba, "late");
  std::this_thread::sleep_for(std::chrono::milliseconds(600));  // the writers' threads have tried
  EXPECT_FALSE(read_activities(folder_.live()).contains(alba));
  late.reset();
  EXPECT_TRUE(read_activities(folder_.live()).contains(brno));
}

}  // namespace
}  // namespace xffl::history
