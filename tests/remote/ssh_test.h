// What the tests of SSH share.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "support/sshd.h"
#include "xffl/base/error.h"
#include "xffl/remote/ssh.h"

namespace xffl::remote {

class SshTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!test::Sshd::missing().empty()) GTEST_SKIP() << test::Sshd::missing();
  }

  static Error error_of(const std::function<void()>& body) {
    try {
      body();
    } catch (const Error& error) {
      return error;
    }
    ADD_FAILURE() << "no error";
    return Error(ErrorKind::kInternal, "no error");
  }
  static CommandResult run(Session& session, const std::vector<std::string>& argv,
                           std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
    return session.run(argv, "", timeout, {});
  }
  static void expect_works(Session& session) {
    EXPECT_EQ(run(session, {"printf", "%s", "works"}).out, "works");
  }
};

}  // namespace xffl::remote
