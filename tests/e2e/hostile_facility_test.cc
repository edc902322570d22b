// Federations with a facility behind a hostile SSH server: the round's deadline and a stop request
// hold while the facility sends one byte a minute, floods stderr, or reads nothing.
#include <gtest/gtest.h>

#include <chrono>
#include <iostream>
#include <thread>

#include "e2e/in_process.h"
#include "support/hostile_server.h"
#include "support/thrown.h"

namespace xffl::test {
namespace {

using namespace std::chrono_literals;
using SteadyClock = std::chrono::steady_clock;
using Behaviour = HostileServer::Behaviour;

constexpr double kByteAMinute = 1.0 / 60;
constexpr int kLargeRows = 600'000;  // 9.6 MB: a stream of its own

struct Case {
  const char* name;
  Behaviour behaviour;
  const char* command;  // a part of the command that misbehaves; "": all channels
  bool shell;
};

class HostileFacility : public InProcessFederation, public testing::WithParamInterface<Case> {
 protected:
  void SetUp() override {
    if (!HostileServer::missing().empty()) GTEST_SKIP() << HostileServer::missing();
    server_.emplace();
    sessions_["brno"] = remote::make_ssh_session(server_->settings(GetParam().shell));
    const Case& each = GetParam();
    server_->set([each](const std::string& command) {
      return command.find(each.command) == std::string::npos ? Behaviour{} : each.behaviour;
    });
    project_.set_model_rows(kLargeRows);
    project_.set_rounds(1);
  }
  double seconds_since(SteadyClock::time_point began) const {
    return std::chrono::duration<double>(SteadyClock::now() - began).count();
  }

  std::optional<HostileServer> server_;
};

// alba submits within a second or two; the deadline counts from then.
TEST_P(HostileFacility, LosesItsRoundAtTheDeadline) {
  constexpr double kDeadline = 8;
  project_.set_policy("{on_missing: skip, deadline: 8s, quorum: 1, poll_interval: 20ms}");
  project_.write_config();
  EXPECT_EQ(run().rounds_published, 1);
  std::optional<Clock::UtcTime> submitted, published;
  for (const history::StoredEvent& event : project_.events()) {
    if (event.kind == "submitted" && !submitted) submitted = parse_utc(event.time_utc);
    if (event.kind == "published") published = parse_utc(event.time_utc);
  }
  ASSERT_TRUE(submitted && published);
  const double seconds = std::chrono::duration<double>(*published - *submitted).count();
  std::cout << GetParam().name << ": the round ended " << seconds - kDeadline
            << " s after its deadline\n";
  EXPECT_LT(seconds, kDeadline + 20);
  EXPECT_EQ(project_.trainings().front(), "alba 1 1");
  EXPECT_EQ(project_.count_events("update_accepted"), 1) << "alba's alone";
}

TEST_P(HostileFacility, AStopRequestEndsTheRun) {
  project_.set_policy("{on_missing: wait, poll_interval: 20ms}");
  project_.write_config();
  SteadyClock::time_point requested;
  const std::jthread stopper([&] {
    EXPECT_TRUE(await([&] { return server_->channels(GetParam().command) > 0; }));
    std::this_thread::sleep_for(1s);  // inside the call
    requested = SteadyClock::now();
    stop_.request_stop();
  });
  const Error error = error_of([&] { run(); });
  EXPECT_EQ(error.kind(), ErrorKind::kCancelled) << error.what();
  const double seconds = seconds_since(requested);
  std::cout << GetParam().name << ": the run ended " << seconds << " s after the stop request\n";
  EXPECT_LT(seconds, 10);
}

// With on_missing: wait no deadline ends a transfer. A user who makes the facility leave does.
class LeavingFacility : public HostileFacility {};

TEST_P(LeavingFacility, EndsATransferUnderWay) {
  project_.set_policy("{on_missing: wait, poll_interval: 20ms}");
  project_.write_config();
  std::optional<SteadyClock::time_point> left;
  const std::jthread user([&] {
    if (!await([&] { return server_->channels(GetParam().command) > 0; })) return;
    std::this_thread::sleep_for(2s);
    left = SteadyClock::now();
    history::leave_request(history::RunFolder(project_.path() / "runs", RunName("0001")),
                           {.kind = history::Request::Kind::kLeave,
                            .facilities = {FacilityName("brno")},
                            .reason = "it never ends",
                            .now = true});
  });
  EXPECT_EQ(run().rounds_published, 1);
  ASSERT_TRUE(left);
  const double seconds = seconds_since(*left);
  std::cout << GetParam().name << ": the round ended " << seconds << " s after the departure\n";
  EXPECT_LT(seconds, 20);
  EXPECT_EQ(project_.trainings().front(), "alba 1 1");
}

INSTANTIATE_TEST_SUITE_P(
    All, LeavingFacility,
    testing::Values(Case{"Push", {.takes_per_second = kByteAMinute}, "dd of=", true},
                    Case{"Fetch", {.sends_per_second = kByteAMinute}, "iflag=skip_bytes", true}),
    [](const auto& each) { return std::string(each.param.name); });

INSTANTIATE_TEST_SUITE_P(
    All, HostileFacility,
    testing::Values(
        Case{"PushThatTrickles", {.takes_per_second = kByteAMinute}, "dd of=", true},
        Case{"PushThatTricklesBySftp", {.takes_per_second = 40}, "sftp", false},
        Case{"PushIntoAFlood", {.takes_per_second = 0, .floods_stderr = true}, "dd of=", true},
        Case{"FetchThatTrickles", {.sends_per_second = kByteAMinute}, "iflag=skip_bytes", true},
        Case{"EverythingTrickles", {.sends_per_second = kByteAMinute}, "", true},
        Case{"EverythingFloods", {.sends_per_second = 0, .floods_stderr = true}, "", true},
        Case{"AnswersOfAnotherType",
             {.on_request = [](const SftpPacket& request) -> std::optional<std::string> {
               if (request.type != kSftpLstat) return std::nullopt;
               std::this_thread::sleep_for(std::chrono::milliseconds(300));
               return SftpPacket{kSftpName, request.id, sftp_u32(0)}.bytes();
             }},
             "sftp",
             false}),
    [](const auto& each) { return std::string(each.param.name); });

}  // namespace
}  // namespace xffl::test
