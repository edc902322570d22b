// What the tests of SSH share.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "support/sshd.h"
#include "support/thrown.h"
#include "xffl/base/error.h"
#include "xffl/remote/ssh.h"

namespace xffl::remote {

using test::error_of;

class SshTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!test::Sshd::missing().empty()) GTEST_SKIP() << test::Sshd::missing();
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
