// A course that is stepped by hand.
#pragma once

#include <string>
#include <vector>

#include "xffl/facility/machine.h"

namespace xffl::test {

struct CourseHand {
  facility::Rules rules = usual_rules();
  facility::Moment moment;
  facility::Step last;
  std::vector<std::string> kinds;  // of all records so far

  static facility::Rules usual_rules() {
    facility::Rules rules;
    rules.poll_interval = std::chrono::seconds(60);
    rules.settle_time = std::chrono::seconds(10);
    rules.seed = "test";
    return rules;
  }

  /// Time passes; nothing happens.
  void pass(facility::Nanoseconds time) {
    moment.now += time;
    if (moment.since_first_submission) *moment.since_first_submission += time;
  }
  void give(const facility::Event& event, facility::Nanoseconds after = std::chrono::seconds(1)) {
    pass(after);
    last = step(rules, std::move(last.course), event, moment);
    for (const facility::Record& record : last.records) kinds.push_back(record.kind);
  }
  template <class Kind>
  const Kind* action() const {
    return std::get_if<Kind>(&last.action);
  }
  void sleep_if_asked() {
    while (const auto* sleep = action<facility::Sleep>()) give(facility::Woke{}, sleep->duration);
  }
  void to_the_job() {
    give(facility::Began{});
    give(facility::Completed{});
    give(facility::Submitted{JobId("7")});
  }
};

}  // namespace xffl::test
