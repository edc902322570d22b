#include "xffl/observe/observers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <thread>
#include <utility>

#include "journal_follower.h"
#include "support/await.h"
#include "support/temp_dir.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"
#include "xffl/history/events.h"
#include "xffl/history/store.h"

namespace xffl::observe {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using testing::HasSubstr;
using testing::Not;

class ObserversTest : public testing::Test {
 protected:
  ObserversTest() {
    make_dirs(run_.path());
    store_ = history::Store::open(run_.journal());
    record({}, history::RunCreated{RunName("0001"), "p", "s", "t", "c"});
    log::set_file(folder_ / "log");
  }
  ~ObserversTest() override { log::set_file({}); }
  void record(const history::EventScope& scope, const history::Event& event) {
    store_->append(history::encode(scope, event));
  }
  Settings settings() const {
    Settings settings;
    settings.observe.prometheus = file_;
    settings.project_folder = folder_.path();
    settings.project = "p";
    settings.look_interval = milliseconds(5);
    settings.write_interval = milliseconds(20);
    return settings;
  }
  std::string text() const { return fs::exists(file_) ? read_file(file_, 1 << 20) : ""; }
  bool shows(const std::string& line) const {
    return test::await([&] { return text().find(line) != std::string::npos; });
  }

  test::TempDir folder_;
  const history::RunFolder run_{folder_ / "runs", RunName("0001")};
  const fs::path file_ = folder_ / "xffl.prom";
  std::unique_ptr<history::Store> store_;
};

TEST_F(ObserversTest, KeepTheFileUpToDate) {
  const mode_t before = ::umask(077);
  {
    Observers observers(settings(), run_, {});
    EXPECT_EQ(text(), "");
    observers.begin(store_->epoch());
    EXPECT_TRUE(shows("xffl_run_state{state=\"running\"} 1\n"));
    record({1}, history::Published{std::string(64, '1')});
    EXPECT_TRUE(shows("xffl_rounds_published_total 1\n"));
    record({}, history::RunCompleted{std::string(64, '1')});
  }
  ::umask(before);
  EXPECT_THAT(text(), HasSubstr("xffl_run_state{state=\"completed\"} 1\n"));
  struct stat info {};
  ASSERT_EQ(::stat(file_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0644u) << "the collector is another user";
  for (const auto& entry : fs::directory_iterator(folder_.path()))
    EXPECT_THAT(entry.path().string(), Not(HasSubstr(".tmp")));
}

TEST_F(ObserversTest, WriteStoppedWhenTheCoordinatorEndsBeforeItsRun) {
  {
    Observers observers(settings(), run_, {});
    observers.begin(store_->epoch());
    EXPECT_TRUE(shows("xffl_run_state{state=\"running\"} 1\n"));
  }
  EXPECT_THAT(text(), HasSubstr("xffl_run_state{state=\"stopped\"} 1\n"));
}

// Prometheus would show a stopped run while its successor works on it.
TEST_F(ObserversTest, OfACoordinatorThatHasLostItsRunWriteNothing) {
  std::unique_ptr<history::Store> successor;
  {
    Observers late(settings(), run_, {});
    late.begin(store_->epoch());
    ASSERT_TRUE(shows("xffl_run_state{state=\"running\"} 1\n"));
    fs::remove(run_.journal().string() + ".lock");
    successor = history::Store::open(run_.journal());
    write_file_atomic(file_, "of the successor\n");
    successor->append(history::encode({1}, history::Published{std::string(64, '1')}));
  }
  EXPECT_EQ(text(), "of the successor\n");
}

// A hook takes seconds: an event that is recorded meanwhile comes with the next look.
TEST_F(ObserversTest, AnEventThatIsRecordedDuringAReadingFollowsWithTheNext) {
  JournalFollower follower(run_.journal());
  std::vector<int64_t> seen;
  const auto look = [&](bool records) {
    follower.read([&](const history::StoredEvent& event) {
      seen.push_back(event.seq);
      if (records) record({1}, history::Published{std::string(64, '1')});
    });
  };
  look(true);
  EXPECT_EQ(seen, (std::vector<int64_t>{1}));
  look(false);
  EXPECT_EQ(seen, (std::vector<int64_t>{1, 2}));
}

TEST_F(ObserversTest, TheEventsOfAFailedReadingComeAgain) {
  JournalFollower follower(run_.journal());
  const auto fails = [](const history::StoredEvent&) {
    throw Error(ErrorKind::kIo, "the disk is full");
  };
  EXPECT_THROW(follower.read(fails), Error);
  std::vector<int64_t> seen;
  follower.read([&](const history::StoredEvent& event) { seen.push_back(event.seq); });
  EXPECT_EQ(seen, (std::vector<int64_t>{1}));
}

// Figures that add up the events would count an event twice.
TEST_F(ObserversTest, AFailedReadingContinuesWithTheEventThatFailed) {
  for (const char digit : {'1', '2'}) record({1}, history::Published{std::string(64, digit)});
  JournalFollower follower(run_.journal());
  std::vector<int64_t> seen;
  bool fails = true;
  const auto each = [&](const history::StoredEvent& event) {
    if (event.seq == 3 && std::exchange(fails, false))
      throw Error(ErrorKind::kIo, "the disk is full");
    seen.push_back(event.seq);
  };
  EXPECT_THROW(follower.read(each), Error);
  follower.read(each);
  EXPECT_EQ(seen, (std::vector<int64_t>{1, 2, 3}));
}

TEST_F(ObserversTest, WriteTheHeartbeatWithoutEvents) {
  Settings often = settings();
  often.heartbeat = milliseconds(30);
  Observers observers(often, run_, {});
  observers.begin(store_->epoch());
  ASSERT_TRUE(shows("xffl_heartbeat_timestamp_seconds"));
  const std::string first = text();
  EXPECT_TRUE(test::await([&] { return text() != first; }));
}

TEST_F(ObserversTest, WriteNoMoreOftenThanTheInterval) {
  Settings seldom = settings();
  seldom.write_interval = std::chrono::hours(1);
  Observers observers(seldom, run_, {});
  observers.begin(store_->epoch());
  ASSERT_TRUE(shows("xffl_rounds_published_total 0\n"));
  record({1}, history::Published{std::string(64, '1')});
  std::this_thread::sleep_for(milliseconds(200));
  EXPECT_THAT(text(), HasSubstr("xffl_rounds_published_total 0\n"));
}

TEST_F(ObserversTest, WriteTheEndsOfCertificates) {
  Settings ending = settings();
  ending.credentials = [] {
    return std::map<FacilityName, status::EndingCredential>{
        {FacilityName("alba"), {*parse_utc("2026-03-01T12:00:00.000Z"), ""}}};
  };
  Observers observers(ending, run_, {});
  observers.begin(store_->epoch());
  EXPECT_TRUE(shows("xffl_credential_expiry_timestamp_seconds{facility=\"alba\"} 1772366400\n"));
}

TEST_F(ObserversTest, LogAFileThatCannotBeWrittenOnce) {
  Settings wrong = settings();
  wrong.observe.prometheus = "/proc/xffl.prom";
  wrong.heartbeat = milliseconds(1);
  {
    Observers observers(wrong, run_, {});
    observers.begin(store_->epoch());
    std::this_thread::sleep_for(milliseconds(200));
  }
  const std::string log = read_file(folder_ / "log", 1 << 20);
  size_t warnings = 0, messages = 0;
  for (size_t at = 0; (at = log.find("\"warning\"", at)) != std::string::npos; ++at) ++warnings;
  for (size_t at = 0; (at = log.find("is not written", at)) != std::string::npos; ++at) ++messages;
  EXPECT_EQ(warnings, 1u) << log;
  EXPECT_GT(messages, 2u) << log;
}

// The file is a link to itself.
TEST_F(ObserversTest, AnUnreadableFileOfTheHooksEndsNoRun) {
  fs::create_symlink("hooks.done", run_.path() / "hooks.done");
  Settings both = settings();
  both.hooks.command = {"true"};
  Observers observers(both, run_, {});
  observers.begin(store_->epoch());
  EXPECT_TRUE(shows("xffl_run_state{state=\"running\"} 1\n"));
  EXPECT_THAT(read_file(folder_ / "log", 1 << 20), HasSubstr("hooks are off"));
}

TEST_F(ObserversTest, EndAHangingHookSoonAfterAStop) {
  Settings hanging = settings();
  hanging.hooks.on = {"published"};
  hanging.hooks.command = {"sh", "-c", "echo x >> started; sleep 1000"};
  hanging.hooks.timeout = std::chrono::seconds(600);
  std::stop_source stop;
  auto began = std::chrono::steady_clock::now();
  {
    Observers observers(hanging, run_, stop.get_token());
    observers.begin(store_->epoch());
    record({1}, history::Published{std::string(64, '1')});
    ASSERT_TRUE(test::await([&] { return fs::exists(folder_ / "started"); }));
    stop.request_stop();
    began = std::chrono::steady_clock::now();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(8));
}

// Many events wait, and the program of each one hangs until its time limit.
TEST_F(ObserversTest, EndAfterTwiceTheTimeLimitOfAHook) {
  constexpr int kEvents = 20;
  write_file_atomic(run_.path() / "hooks.done", "{\"schema\": 1, \"seq\": 1}\n");
  for (int i = 0; i < kEvents; ++i) record({1}, history::Published{std::string(64, '1')});
  Settings hanging = settings();
  hanging.hooks.on = {"published"};
  hanging.hooks.command = {"sh", "-c", "echo x >> started; sleep 1000"};
  hanging.hooks.timeout = std::chrono::seconds(1);
  {
    Observers observers(hanging, run_, {});
    observers.begin(store_->epoch());
    ASSERT_TRUE(test::await([&] { return fs::exists(folder_ / "started"); }));
  }
  const std::string started = read_file(folder_ / "started", 1 << 10);
  EXPECT_LT(std::count(started.begin(), started.end(), 'x'), kEvents / 2);
}

TEST_F(ObserversTest, SendTheLastEvents) {
  Settings sending = settings();
  sending.look_interval = std::chrono::hours(1);  // only the first and the last look
  sending.hooks.command = {"sh", "-c", "cat >> got"};
  {
    Observers observers(sending, run_, {});
    observers.begin(store_->epoch());
    std::this_thread::sleep_for(milliseconds(100));
    record({}, history::RunCompleted{std::string(64, '1')});
  }
  EXPECT_THAT(read_file(folder_ / "got", 1 << 16), HasSubstr("\"kind\":\"run_completed\""));
}

}  // namespace
}  // namespace xffl::observe
