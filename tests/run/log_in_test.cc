
#include "xffl/run/log_in.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <memory>
#include <optional>
#include <stdexcept>
#include <thread>

#include "support/await.h"
#include "support/failing_call.h"
#include "support/temp_dir.h"
#include "support/thrown.h"
#include "xffl/base/error.h"
#include "xffl/history/run_history.h"
#include "xffl/history/work_files.h"
#include "xffl/remote/stop_scope.h"

namespace xffl::run {
namespace {

class LogIn : public testing::Test {
 protected:
  // A path that is longer than a socket's name may be.
  test::TempDir dir_;
  history::RunFolder folder_{dir_.path() / std::string(120, 'x'), RunName("0001")};
  std::unique_ptr<history::RunHistory> history_;
  std::vector<std::string> seen_;

  LogIn() {
    std::filesystem::create_directories(folder_.path());
    history_ = std::make_unique<history::RunHistory>(folder_.journal());
  }
  // Another coordinator takes the run over.
  history::RunHistory successor() const {
    std::filesystem::remove(folder_.journal().string() + ".lock");
    return history::RunHistory(folder_.journal());
  }
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
  LoginServer desk(folder_.login(), *history_, two_factors());
  EXPECT_EQ(std::filesystem::status(folder_.login()).permissions(), std::filesystem::perms(0600));
  EXPECT_TRUE(log_in_as_client("123456"));
  EXPECT_THAT(seen_, testing::ElementsAre("alba", "123456", "ann"));
  EXPECT_TRUE(log_in_as_client("123456")) << "as often as one likes";
}

TEST_F(LogIn, AnotherUserOfThisMachineIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root may become another user";
  LoginServer desk(folder_.login(), *history_, two_factors());
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
  LoginServer desk(folder_.login(), *history_, two_factors());
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
  { LoginServer desk(folder_.login(), *history_, two_factors()); }
  EXPECT_FALSE(std::filesystem::exists(folder_.login()));
  EXPECT_FALSE(log_in_as_client("123456"));
  const std::filesystem::path aside = folder_.path() / "aside";
  {
    LoginServer killed(folder_.login(), *history_, two_factors());
    std::filesystem::rename(folder_.login(), aside);
  }
  std::filesystem::rename(aside, folder_.login());
  EXPECT_FALSE(log_in_as_client("123456")) << "nothing listens";
}

TEST_F(LogIn, AReplacedCoordinatorLeavesTheSocketOfItsSuccessor) {
  auto replaced = std::make_unique<LoginServer>(folder_.login(), *history_, two_factors());
  history::RunHistory fresh = successor();
  LoginServer desk(folder_.login(), fresh, two_factors());
  replaced.reset();
  EXPECT_TRUE(log_in_as_client("123456"));
}

// It was frozen before it began to listen.
TEST_F(LogIn, ALateCoordinatorLeavesTheSocketOfItsSuccessor) {
  history::RunHistory fresh = successor();
  LoginServer desk(folder_.login(), fresh, two_factors());
  { LoginServer late(folder_.login(), *history_, two_factors()); }
  EXPECT_TRUE(log_in_as_client("123456"));
  EXPECT_FALSE(std::filesystem::exists(history_->work_name(folder_.login())));
}

// A coordinator that is frozen after its last check of the run renames a socket that is gone.
TEST_F(LogIn, ATakeOverRemovesASocketWithoutItsFinalName) {
  LoginServer desk(folder_.login(), *history_, two_factors());
  const std::filesystem::path work = history_->work_name(folder_.login());
  std::filesystem::rename(folder_.login(), work);
  history::RunHistory fresh = successor();
  history::take_over_work_files(folder_, 0, fresh.epoch());
  EXPECT_FALSE(std::filesystem::exists(work));
}

// Some file systems allow no chmod of a socket.
TEST_F(LogIn, ASocketThatKeepsItsPermissionsIsRemoved) {
  const int code = test::in_child([&] {
    if (!test::fail_calls(SYS_fchmodat, EPERM)) return 77;
    try {
      const LoginServer desk(folder_.login(), *history_, two_factors());
    } catch (const std::exception&) {
      return 2;
    }
    return std::filesystem::exists(folder_.login()) ? 1 : 0;
  });
  if (code == 77) GTEST_SKIP() << "this system allows no seccomp filter";
  EXPECT_EQ(code, 0) << "2: the run would end";
  EXPECT_FALSE(std::filesystem::exists(history_->work_name(folder_.login())));
}

// A client that disconnects is a failed log-in; the coordinator continues.
TEST_F(LogIn, AClientThatDisconnectsHarmsNothing) {
  LoginServer desk(folder_.login(), *history_, two_factors());
  EXPECT_THROW(log_in_through_coordinator(folder_, FacilityName("alba"),
                                          [](const std::string&, bool) -> std::string {
                                            throw Error(ErrorKind::kUsage, "no terminal");
                                          }),
               Error);
  EXPECT_TRUE(log_in_as_client("123456"));
}

TEST_F(LogIn, AnUnexpectedExceptionEndsOnlyItsLogIn) {
  LoginServer desk(folder_.login(), *history_, [](const FacilityName&, const remote::Ask&) {
    throw std::runtime_error("no Error");
  });
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(test::kind_of([&] { log_in_as_client("123456"); }), ErrorKind::kAuth);
}

// A user may type for two minutes.
TEST_F(LogIn, AnEndingCoordinatorWaitsForNoAnswer) {
  std::optional<LoginServer> desk(std::in_place, folder_.login(), *history_, two_factors());
  std::atomic<bool> is_asked = false, has_ended = false;
  const std::jthread client([&] {
    const auto answer = [&](const std::string&, bool) {
      is_asked = true;
      EXPECT_TRUE(test::await([&] { return has_ended.load(); }, std::chrono::seconds(30)));
      return std::string("123456");
    };
    EXPECT_THROW(log_in_through_coordinator(folder_, FacilityName("alba"), answer), Error);
  });
  EXPECT_TRUE(test::await([&] { return is_asked.load(); }));
  desk.reset();
  has_ended = true;
}

// The host hardly answers.
TEST_F(LogIn, AnEndingCoordinatorStopsALogIn) {
  std::atomic<bool> has_begun = false, is_stopped = false;
  std::optional<LoginServer> desk(
      std::in_place, folder_.login(), *history_, [&](const FacilityName&, const remote::Ask&) {
        has_begun = true;
        const auto stops = [] { return remote::StopScope::current().stop_requested(); };
        is_stopped = test::await(stops, std::chrono::seconds(30));
      });
  const std::jthread client([&] { log_in_as_client("123456"); });
  EXPECT_TRUE(test::await([&] { return has_begun.load(); }));
  desk.reset();
  EXPECT_TRUE(is_stopped);
}

}  // namespace
}  // namespace xffl::run
