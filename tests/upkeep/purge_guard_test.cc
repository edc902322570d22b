// Uses files of this machine.
#include "xffl/upkeep/purge_guard.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/fake_session.h"
#include "support/temp_dir.h"
#include "support/thrown.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"

namespace xffl::upkeep {
namespace {

namespace fs = std::filesystem;
using std::chrono::days;
using std::chrono::hours;
using std::chrono::seconds;
using testing::HasSubstr;

// A folder that is not on the disk of TempDir.
struct OtherDisk {
  OtherDisk() { fs::create_directory(path); }
  ~OtherDisk() { fs::remove_all(path); }
  const fs::path path = "/dev/shm/xffl-test-" + std::to_string(::getpid());
};

class Purge : public testing::Test {
 protected:
  Purge() {
    log::set_console_level(log::Level::kOff);
    facility_.name = FacilityName("alba");
    facility_.workdir = RemotePath(work_.string());
    facility_.purge_after = days(40);
    facility_.train_data = {file("train.tokens", days(1))};
    facility_.validation = {{"it", file("val.tokens", days(35))}};
    make_dirs(work_ / "run");
  }
  ~Purge() override { log::set_file({}); }

  std::string file(const std::string& name, seconds unused) const {
    write_file_atomic(work_ / name, "x");
    const time_t then = ::time(nullptr) - unused.count();
    const timespec times[2] = {{then, 0}, {then, 0}};
    EXPECT_EQ(::utimensat(AT_FDCWD, (work_ / name).c_str(), times, 0), 0);
    return work_ / name;
  }
  static seconds age(const std::string& path) {
    struct stat info {};
    EXPECT_EQ(::stat(path.c_str(), &info), 0);
    return seconds(::time(nullptr) - info.st_mtime);
  }
  std::string log_of(const std::function<void()>& body) const {
    log::set_file(dir_ / "log");
    body();
    log::set_file({});
    return read_file(dir_ / "log", 1 << 20);
  }

  const test::TempDir dir_;
  const fs::path work_ = [this] {
    make_dirs(dir_ / "a b's");
    return fs::canonical(dir_ / "a b's");
  }();
  std::unique_ptr<remote::Session> session_ = remote::make_local_session();
  config::Facility facility_;
  PurgeWatch watch_;
};

TEST_F(Purge, AgeIsTheTimeSinceTheLastReadOrWrite) {
  const std::string recently_read = file("read", days(39));
  const timespec times[2] = {{::time(nullptr), 0}, {0, UTIME_OMIT}};
  ASSERT_EQ(::utimensat(AT_FDCWD, recently_read.c_str(), times, 0), 0);
  const std::string recently_written = file("written", days(39));
  const timespec later[2] = {{0, UTIME_OMIT}, {::time(nullptr), 0}};  // mounted with noatime
  ASSERT_EQ(::utimensat(AT_FDCWD, recently_written.c_str(), later, 0), 0);
  const auto found =
      file_ages(*session_, facility_.workdir,
                {facility_.train_data[0], facility_.validation[0].path, recently_read,
                 work_ / "gone", "/proc/self/status", recently_written});
  ASSERT_EQ(found.size(), 5u) << "/proc is another file system";
  EXPECT_NEAR(static_cast<double>(found[0].unused_for->count()), 86400, 100);
  EXPECT_NEAR(static_cast<double>(found[1].unused_for->count()), 35 * 86400, 100);
  EXPECT_LT(*found[2].unused_for, seconds(100));
  EXPECT_FALSE(found[3].unused_for);
  EXPECT_LT(*found[4].unused_for, seconds(100));
}

TEST_F(Purge, TheAgeOfALinkIsThatOfItsFile) {
  fs::create_symlink(facility_.validation[0].path, work_ / "link");
  const auto found = file_ages(*session_, facility_.workdir, {(work_ / "link").string()});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_GT(*found[0].unused_for, days(34));
}

// Otherwise the check of all facilities would end.
TEST_F(Purge, AFacilityThatDoesNotAnswerIsAskedAgainSoon) {
  test::FakeSession down;
  down.make_dirs(facility_.workdir / "run");
  int calls = 0;
  down.on_run = [&](const auto&, const auto&) -> remote::CommandResult {
    ++calls;
    throw Error(ErrorKind::kRemote, "the link is down");
  };
  const Clock::MonotonicTime start{hours(1)};
  EXPECT_TRUE(watch_.is_due(facility_, start));
  EXPECT_FALSE(watch_.is_due(facility_, start + hours(1)));
  EXPECT_NO_THROW(watch_.check(down, facility_, facility_.workdir / "run", {}));
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(watch_.is_due(facility_, start + hours(1))) << "not only after purge_after / 8";
}

TEST_F(Purge, FilesThatCouldNotBeTouchedAreTouchedSoon) {
  test::FakeSession facility;
  facility.make_dirs(facility_.workdir / "run");
  facility.on_run = [](const auto& argv, const auto&) -> remote::CommandResult {
    if (argv.at(0) == "find") return {.exit_code = 1, .out = {}, .err = "find: timed out"};
    return {.exit_code = 0, .out = "1772366400 5\nxffl-end\n", .err = {}};
  };
  const Clock::MonotonicTime start{hours(1)};
  EXPECT_TRUE(watch_.is_due(facility_, start));
  watch_.check(facility, facility_, facility_.workdir / "run", {});
  EXPECT_TRUE(watch_.is_due(facility_, start + hours(1))) << "not only after purge_after / 8";
}

// A folder that find cannot read, or a file of another user.
TEST_F(Purge, FilesThatCannotBeTouchedHideNoOldOnes) {
  test::FakeSession facility;
  facility.make_dirs(facility_.workdir / "run");
  facility.on_run = [&](const auto& argv, const auto& input) -> remote::CommandResult {
    if (argv.at(0) == "find") return {.exit_code = 1, .out = {}, .err = "find: not permitted"};
    return session_->run(argv, input, std::chrono::seconds(60), {});
  };
  const auto check = [&] { watch_.check(facility, facility_, facility_.workdir / "run", {}); };
  const auto warnings = [&] {
    const std::string log = log_of(check);
    size_t count = 0;
    for (size_t at = 0; (at = log.find("\"warning\"", at)) != std::string::npos; ++at) ++count;
    return count;
  };
  EXPECT_EQ(warnings(), 2u);
  EXPECT_THAT(read_file(dir_ / "log", 1 << 20), HasSubstr("val.tokens"));
  EXPECT_THAT(read_file(dir_ / "log", 1 << 20), HasSubstr("find: not permitted"));
  EXPECT_EQ(warnings(), 2u) << "each once";
}

// The warning would name files that exist.
TEST_F(Purge, ATornAnswerReportsNoFileAsAbsent) {
  test::FakeSession torn;
  torn.on_run = [](const auto&, const auto&) -> remote::CommandResult {
    return {.exit_code = 0, .out = "1772366400 5\n", .err = {}};
  };
  EXPECT_EQ(test::kind_of([&] { file_ages(torn, facility_.workdir, {facility_.train_data[0]}); }),
            ErrorKind::kIo);
}

// Many sites link a short path to the scratch file system: /scratch/me.
TEST_F(Purge, FollowsALinkToTheWorkFolder) {
  struct stat here {
  }, there{};
  ASSERT_EQ(::stat(dir_.path().c_str(), &here), 0);
  if (::stat("/dev/shm", &there) != 0 || here.st_dev == there.st_dev)
    GTEST_SKIP() << "/dev/shm is on the disk of TempDir";
  const OtherDisk scratch;
  fs::create_directory_symlink(scratch.path, dir_ / "scratch");
  write_file_atomic(dir_ / "scratch/train.tokens", "x");
  write_file_atomic(dir_ / "elsewhere", "x");
  const auto found =
      file_ages(*session_, RemotePath((dir_ / "scratch").string()),
                {(dir_ / "scratch/train.tokens").string(), (dir_ / "elsewhere").string()});
  ASSERT_EQ(found.size(), 1u) << "only the file on the scratch file system";
  EXPECT_EQ(found[0].path, dir_ / "scratch/train.tokens");
}

TEST_F(Purge, WarnsOfUserFilesOnce) {
  const auto check = [&] { watch_.check(*session_, facility_, facility_.workdir / "run", {}); };
  const std::string first = log_of(check);
  EXPECT_THAT(first, HasSubstr("val.tokens"));
  EXPECT_THAT(first, HasSubstr("was not used for 35 days: the site removes it after 40 days"));
  EXPECT_THAT(first, testing::Not(HasSubstr("train.tokens")));
  EXPECT_EQ(log_of(check), first) << "warned again";
  fs::remove(facility_.train_data[0]);
  EXPECT_THAT(log_of(check), HasSubstr("does not exist (any more)"));
}

// Weeks may lie between the two.
TEST_F(Purge, WarnsAgainOfAFileThatWasInUseMeanwhileOrIsGone) {
  const auto warnings = [&] {
    watch_.check(*session_, facility_, facility_.workdir / "run", {});
    const std::string log = read_file(dir_ / "log", 1 << 20);
    size_t count = 0;
    for (size_t at = 0; (at = log.find("val.tokens", at)) != std::string::npos; ++at) ++count;
    return count;
  };
  log::set_file(dir_ / "log");
  EXPECT_EQ(warnings(), 1u);
  file("val.tokens", days(1));
  EXPECT_EQ(warnings(), 1u);
  file("val.tokens", days(35));
  EXPECT_EQ(warnings(), 2u);
  fs::remove(facility_.validation[0].path);
  EXPECT_EQ(warnings(), 3u) << "it was purged after the warning";
  EXPECT_EQ(warnings(), 3u);
}

TEST_F(Purge, TouchesOldFilesOfXfflOnly) {
  const std::string old = file("run/model.safetensors", days(25)), young = file("run/new", days(5)),
                    foreign = file("foreign", days(25));
  watch_.check(*session_, facility_, facility_.workdir / "run", {});
  EXPECT_LT(age(old), seconds(100));
  EXPECT_GT(age(young), hours(100)) << "touched too early";
  EXPECT_GT(age(foreign), hours(100)) << "not xffl's own";
}

TEST_F(Purge, IsDueEightTimesPerPurgeTime) {
  const Clock::MonotonicTime start{hours(1)};
  EXPECT_TRUE(watch_.is_due(facility_, start));
  EXPECT_FALSE(watch_.is_due(facility_, start + days(4)));
  EXPECT_TRUE(watch_.is_due(facility_, start + days(5)));
  EXPECT_FALSE(watch_.is_due(facility_, start + days(6)));
  facility_.purge_after = seconds(0);
  EXPECT_FALSE(watch_.is_due(facility_, start + days(100)));
}

TEST_F(Purge, EachFacilityIsCheckedByItself) {
  config::Facility brno = facility_;
  brno.name = FacilityName("brno");
  const Clock::MonotonicTime start{hours(1)};
  for (const auto time : {start, start + days(5)})
    for (const config::Facility& each : {facility_, brno})
      EXPECT_TRUE(watch_.is_due(each, time)) << each.name.str();
  const auto check = [&](const config::Facility& each) {
    return log_of([&] { watch_.check(*session_, each, each.workdir / "run", {}); });
  };
  EXPECT_THAT(check(facility_), testing::Not(HasSubstr("brno")));
  EXPECT_THAT(check(brno), HasSubstr("brno")) << "its file has the same path";
}

TEST_F(Purge, WarnsAfterThreeQuartersOfThePurgeTime) {
  EXPECT_EQ(purge_warning({"/f", days(10)}, days(40)), "");
  EXPECT_NE(purge_warning({"/f", days(30)}, days(40)), "");
  facility_.trainer_program = "xffl-train";
  facility_.image.file = "/images/x.sif";
  EXPECT_THAT(user_files(facility_), testing::Contains("/images/x.sif"));
  EXPECT_THAT(user_files(facility_), testing::Not(testing::Contains("xffl-train")));
  facility_.trainer_program = "/scratch/me/xffl-train";
  EXPECT_THAT(user_files(facility_), testing::Contains("/scratch/me/xffl-train"));
}

}  // namespace
}  // namespace xffl::upkeep
