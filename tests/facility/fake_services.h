// Services of one facility in memory.
#pragma once

#include <memory>

#include "support/fake_clock.h"
#include "support/fake_scheduler.h"
#include "support/fake_session.h"
#include "xffl/facility/services.h"

namespace xffl::test {

struct FakeServices {
  FakeClock clock;
  FakeCluster cluster;
  std::shared_ptr<FakeSession> session = std::make_shared<FakeSession>();
  facility::Services services{
      .clock = clock,
      .connect = [this](const auto&) { return session; },
      .connect_transfer = [this](const auto&) { return session; },
      .scheduler = [this](const auto&, auto) { return std::make_shared<FakeScheduler>(cluster); },
      .programs = {}};
};

}  // namespace xffl::test
