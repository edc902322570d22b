
#include "xffl/run/log_in.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "support/failing_call.h"
#include "support/temp_dir.h"
#include "xffl/base/error.h"

namespace xffl::run {
namespace {

class LogIn : public testing::Test {
 protected:
  // A path that is longer than a socket's name may be.
  test::TempDir dir_;
  history::RunFolder folder_{dir_.path() / std::string(120, 'x'), RunName("0001")};
  std::vector<std::string> seen_;

  LogIn() { std::filesystem::create_directories(folder_.path()); }
  LoginServer::LogIn two_factors() {
    return [this](const FacilityName& facility, const remote::Ask& ask) {
      seen_ = {facility.str(), ask("Code: ", false), ask("Name: ", true)};
      if (seen_[1] != "123456") throw Error(ErrorKind::kAuth, "the log-in was refused");
    };
  }
  bool log_in_as_client(const std::string& code) {
    return log_in_through_coordinator(folder_, FacilityName("alba"),
                                      [&](const std::string& prompt, bool echo) {
                                        return echo ? "ann" : prompt == "Code: " ? code : "?";
                                      });
  }
};

TEST_F(LogIn, AnswersReachTheCoordinator) {
  LoginServer desk(folder_.login(), two_factors());
  EXPECT_EQ(std::filesystem::status(folder_.login()).permissions(), std::filesystem::perms(0600));
  EXPECT_TRUE(log_in_as_client("123456"));
  EXPECT_THAT(seen_, testing::ElementsAre("alba", "123456", "ann"));
  EXPECT_TRUE(log_in_as_client("123456")) << "as often as one likes";
}

TEST_F(LogIn, AnotherUserOfThisMachineIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root may become another user";
  LoginServer desk(folder_.login(), two_factors());
  namespace fs = std::filesystem;
  for (fs::path path = folder_.path(); path != dir_.path().parent_path(); path = path.parent_path())
    fs::permissions(path, fs::perms(0755));
  fs::permissions(folder_.login(), fs::perms(0666));  // the check of the peer alone is left
  const int result = test::in_child([&] {
    if (::setuid(65534) != 0) return 3;
    try {
      return log_in_as_client("123456") ? 0 : 2;
    } catch (const Error&) {
      return 1;
    }
  });
  EXPECT_EQ(result, 1) << "0: logged in";
  EXPECT_TRUE(seen_.empty());
}

TEST_F(LogIn, TheCoordinatorsErrorReachesTheClient) {
  LoginServer desk(folder_.login(), two_factors());
  try {
    log_in_as_client("0");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kAuth);
    EXPECT_STREQ(error.what(), "the log-in was refused");
  }
}

TEST_F(LogIn, ReturnsFalseWithoutACoordinator) {
  EXPECT_FALSE(log_in_as_client("123456"));
  { LoginServer desk(folder_.login(), two_factors()); }
  EXPECT_FALSE(std::filesystem::exists(folder_.login()));
  EXPECT_FALSE(log_in_as_client("123456"));
}

TEST_F(LogIn, AReplacedCoordinatorLeavesTheSocketOfItsSuccessor) {
  auto replaced = std::make_unique<LoginServer>(folder_.login(), two_factors());
  LoginServer successor(folder_.login(), two_factors());
  replaced.reset();
  EXPECT_TRUE(log_in_as_client("123456"));
}

// A client that disconnects is a failed log-in; the coordinator continues.
TEST_F(LogIn, AClientThatDisconnectsHarmsNothing) {
  LoginServer desk(folder_.login(), two_factors());
  EXPECT_THROW(log_in_through_coordinator(folder_, FacilityName("alba"),
                                          [](const std::string&, bool) -> std::string {
                                            throw Error(ErrorKind::kUsage, "no terminal");
                                          }),
               Error);
  EXPECT_TRUE(log_in_as_client("123456"));
}

}  // namespace
}  // namespace xffl::run
