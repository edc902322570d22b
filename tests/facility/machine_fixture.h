// A machine that is stepped by fixture.
#pragma once

#include <string>
#include <vector>

#include "xffl/facility/machine.h"

namespace xffl::test {

struct MachineFixture {
  facility::FacilityPolicy policy = usual_policy();
  facility::Now now;
  facility::Step last;
  std::vector<std::string> kinds;  // of all records so far

  static facility::FacilityPolicy usual_policy() {
    facility::FacilityPolicy policy;
    policy.poll_interval = std::chrono::seconds(60);
    policy.settle_time = std::chrono::seconds(10);
    policy.seed = "test";
    return policy;
  }

  /// Time passes; nothing happens.
  void pass(facility::Nanoseconds time) {
    now.time += time;
    if (now.since_first_submission) *now.since_first_submission += time;
    if (now.since_quorum) *now.since_quorum += time;
  }
  void give(const facility::Event& event, facility::Nanoseconds after = std::chrono::seconds(1)) {
    pass(after);
    last = step(policy, std::move(last.machine), event, now);
    for (const facility::Record& record : last.records)
      kinds.emplace_back(history::kind_of(record.event));
  }
  template <class Kind>
  const Kind* action() const {
    return std::get_if<Kind>(&last.action);
  }
  void sleep_if_asked() {
    while (const auto* sleep = action<facility::Sleep>())
      give(facility::TimerFired{}, sleep->duration);
  }
  void to_the_job() {
    give(facility::Resumed{});
    give(facility::Pushed{});
    give(facility::Submitted{JobId("7")});
  }
};

}  // namespace xffl::test
