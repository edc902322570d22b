#include <gtest/gtest.h>

#include "support/await.h"
#include "support/temp_dir.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"
#include "xffl/history/run_folder.h"
#include "xffl/history/run_history.h"

namespace xffl::history {
namespace {

namespace fs = std::filesystem;

class Requests : public testing::Test {
 protected:
  Requests() { log::set_console_level(log::Level::kOff); }
  test::TempDir dir_;
  RunFolder folder_{dir_.path(), RunName("0001")};
};

TEST_F(Requests, AreReadInTheirOrder) {
  EXPECT_TRUE(pending_requests(folder_).empty());
  leave_request(folder_, {Request::Kind::kPause, {FacilityName("alba")}, "upkeep"});
  leave_request(folder_, {Request::Kind::kCancel, {}, "enough"});
  const auto requests = pending_requests(folder_);
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_EQ(requests[0].second.kind, Request::Kind::kPause);
  EXPECT_EQ(requests[0].second.facilities, std::vector{FacilityName("alba")});
  EXPECT_EQ(requests[1].second.reason, "enough");
}

// Several requests of one millisecond, and some after the clock was set back by years.
TEST_F(Requests, KeepTheirOrderWithinAMillisecondAndAfterAClockJump) {
  constexpr int kCount = 200, kLater = 8;
  for (int i = 0; i < kCount; ++i)
    leave_request(folder_, {Request::Kind::kPause, {}, std::to_string(i)});
  const std::string last = pending_requests(folder_).back().first;
  fs::rename(folder_.requests() / last, folder_.requests() / ("2999" + last.substr(4)));
  for (int i = kCount; i < kCount + kLater; ++i)
    leave_request(folder_, {Request::Kind::kResume, {}, std::to_string(i)});
  const auto requests = pending_requests(folder_);
  ASSERT_EQ(requests.size(), static_cast<size_t>(kCount + kLater));
  for (int i = 0; i < kCount + kLater; ++i)
    EXPECT_EQ(requests[static_cast<size_t>(i)].second.reason, std::to_string(i));
}

// A request that an earlier release left: "<time>-<random>.json".
TEST_F(Requests, FollowThoseOfAnEarlierRelease) {
  leave_request(folder_, {Request::Kind::kPause, {}, "first"});
  const std::string name = pending_requests(folder_).front().first;
  fs::rename(folder_.requests() / name,
             folder_.requests() / ("2999" + name.substr(4, 20) + "-ffffffff.json"));
  leave_request(folder_, {Request::Kind::kResume, {}, "second"});
  EXPECT_EQ(pending_requests(folder_).back().second.reason, "second");
}

TEST_F(Requests, KeepAllTheirFields) {
  leave_request(folder_, {Request::Kind::kLeave, {FacilityName("alba")}, "spent", true});
  const auto requests = pending_requests(folder_);
  ASSERT_EQ(requests.size(), 1u);
  EXPECT_EQ(requests[0].second.kind, Request::Kind::kLeave);
  EXPECT_TRUE(requests[0].second.now);
  remove_request(folder_, requests[0].first);
  leave_request(folder_, {Request::Kind::kJoin, {FacilityName("alba")}, ""});
  EXPECT_EQ(pending_requests(folder_).at(0).second.kind, Request::Kind::kJoin);
  EXPECT_FALSE(pending_requests(folder_).at(0).second.now);
}

TEST_F(Requests, AnInvalidRequestIsRemoved) {
  make_dirs(folder_.requests());
  write_file_atomic(folder_.requests() / "1.json", "{}");
  write_file_atomic(folder_.requests() / "2.json.tmp", "{");
  EXPECT_TRUE(pending_requests(folder_).empty());
  EXPECT_FALSE(fs::exists(folder_.requests() / "1.json"));
  EXPECT_TRUE(fs::exists(folder_.requests() / "2.json.tmp")) << "another command is writing it";
}

// Its removal would look like success to the user who cancels.
TEST_F(Requests, AnUnreadableRequestStaysAndHoldsNoOtherBack) {
  make_dirs(folder_.requests() / "1.json");  // reading a folder fails
  leave_request(folder_, {Request::Kind::kCancel, {}, "enough"});
  std::string problem;
  const auto requests = pending_requests(folder_, &problem);
  ASSERT_EQ(requests.size(), 1u);
  EXPECT_EQ(requests[0].second.kind, Request::Kind::kCancel);
  EXPECT_NE(problem.find("1.json"), std::string::npos) << problem;
  EXPECT_EQ(pending_requests(folder_).size(), 1u);
  EXPECT_TRUE(fs::exists(folder_.requests() / "1.json"));
}

TEST_F(Requests, AnActivityMayBeAnyText) {
  const std::string text = "\xff\xed\xa0\x80 \x1b[2J";
  make_dirs(folder_.path());
  RunHistory history(folder_.journal());
  history.record({.facility = FacilityName("alba")}, FacilityPaused{.reason = text});
  EXPECT_TRUE(history.paused(FacilityName("alba")));
  SystemClock clock;
  StatusFile live(folder_.live(), clock);
  live.show(1, FacilityName("alba"), text);
  EXPECT_TRUE(test::await([&] { return read_activities(folder_.live()).size() == 1; }));
}

TEST_F(Requests, ANewRoundsActivityHasNoTrainingYet) {
  const FacilityName alba("alba");
  make_dirs(folder_.path());
  SystemClock clock;
  StatusFile live(folder_.live(), clock);
  const auto shown = [&] { return read_activities(folder_.live())[alba]; };
  live.show(1, alba, "running");
  live.show_training(1, alba, {1, 3, 4, 2.0, 1000});
  ASSERT_TRUE(test::await([&] { return shown().training.has_value(); }));
  live.show(2, alba, "pending");
  ASSERT_TRUE(test::await([&] { return shown().round == 2; }));
  EXPECT_FALSE(shown().training) << "that of the last round";
}

TEST_F(Requests, TheStatusFileIsTheCoordinatorsSignOfLife) {
  make_dirs(folder_.path());
  EXPECT_FALSE(last_sign_of_life(folder_.live()));
  SystemClock clock;
  const Clock::UtcTime before = clock.utc() - std::chrono::seconds(2);
  StatusFile live(folder_.live(), clock, nullptr, std::chrono::milliseconds(300));
  ASSERT_TRUE(test::await([&] { return last_sign_of_life(folder_.live()).has_value(); }));
  EXPECT_GE(*last_sign_of_life(folder_.live()), before);
  fs::last_write_time(folder_.live(), fs::file_time_type::clock::now() - std::chrono::hours(1));
  EXPECT_LT(*last_sign_of_life(folder_.live()), before);
  EXPECT_TRUE(test::await([&] { return *last_sign_of_life(folder_.live()) >= before; }));
}

}  // namespace
}  // namespace xffl::history
