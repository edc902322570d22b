// A course that is stepped by hand.
#pragma once

#include <string>
#include <vector>

#include "xffl/round/course.h"

namespace xffl::test {

struct CourseHand {
  round::Rules rules = usual_rules();
  round::Moment moment;
  round::Step last;
  std::vector<std::string> kinds;  // of all records so far

  static round::Rules usual_rules() {
    round::Rules rules;
    rules.poll_interval = std::chrono::seconds(60);
    rules.settle_time = std::chrono::seconds(10);
    rules.seed = "test";
    return rules;
  }

  /// Time passes; nothing happens.
  void pass(round::Nanoseconds time) {
    moment.now += time;
    if (moment.since_first_submission) *moment.since_first_submission += time;
  }
  void give(const round::Event& event, round::Nanoseconds after = std::chrono::seconds(1)) {
    pass(after);
    last = step(rules, std::move(last.course), event, moment);
    for (const round::Record& record : last.records) kinds.push_back(record.kind);
  }
  template <class Kind>
  const Kind* action() const {
    return std::get_if<Kind>(&last.action);
  }
  void sleep_if_asked() {
    while (const auto* sleep = action<round::Sleep>()) give(round::Woke{}, sleep->duration);
  }
  void to_the_job() {
    give(round::Began{});
    give(round::Completed{});
    give(round::Submitted{JobId("7")});
  }
};

}  // namespace xffl::test
