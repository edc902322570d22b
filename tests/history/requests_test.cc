#include <gtest/gtest.h>

#include "support/temp_dir.h"
#include "support/thrown.h"
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

TEST_F(Requests, AnInvalidRequestIsRemoved) {
  make_dirs(folder_.requests());
  write_file_atomic(folder_.requests() / "1.json", "{}");
  EXPECT_TRUE(pending_requests(folder_).empty());
  EXPECT_FALSE(fs::exists(folder_.requests() / "1.json"));
}

// Its removal would look like success to the user who cancels.
TEST_F(Requests, AnUnreadableRequestStays) {
  make_dirs(folder_.requests() / "1.json");  // reading a folder fails
  EXPECT_EQ(test::kind_of([&] { pending_requests(folder_); }), ErrorKind::kIo);
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
  EXPECT_EQ(read_activities(folder_.live()).size(), 1u);
}

}  // namespace
}  // namespace xffl::history
