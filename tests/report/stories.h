// Stories of synthetic runs, for the tests of the report's page.
#pragma once

#include "report/synthetic_run.h"

namespace xffl::test {

// Text that would be markup, a script, or a control of the terminal, with a secret.
inline constexpr const char* kHostile =
    "\"><script>alert(1)</script></title><img src=x onerror=alert(2)>\x1b]0;x\a\xe2\x80\xae "
    "password=hunter2hunter2";

inline report::RunStory hostile_story() {
  SyntheticRun run(3);
  run.plan(1, 3);
  run.open(1, 0);
  run.open(1, 1);
  run.add({1, SyntheticRun::name(2)}, history::FacilityMissing{kHostile});
  run.fail(1, 0, 1, kHostile);
  run.open(1, 0, 2);
  run.accept(1, 0, 2);
  run.accept(1, 1);
  run.publish(1, {0, 1});
  run.add({0, SyntheticRun::name(1)}, history::FacilityPaused{kHostile});
  run.add({}, history::RunStopped{"io", kHostile});
  report::RunStory story = run.story();
  story.losses.at(0).set = "x\"><script>alert(3)</script>";  // the journal refuses such a name
  return story;
}

// A run with failures, `rounds` rounds of `facilities` facilities.
inline report::RunStory long_story(int rounds, int facilities) {
  SyntheticRun run(rounds);
  for (int round = 1; round <= rounds; ++round) {
    run.plan(round, facilities);
    std::vector<int> all;
    for (int f = 0; f < facilities; ++f) {
      run.open(round, f);
      if ((round + f) % 5 == 0) {
        run.fail(round, f, 1, "job 17 ended with NODE_FAIL on node" + std::to_string(round));
        run.open(round, f, 2);
        run.accept(round, f, 2);
      } else {
        run.accept(round, f);
      }
      all.push_back(f);
    }
    run.publish(round, all);
  }
  report::RunStory story = run.story();
  for (const FacilityName& name : story.facilities)
    for (int step = 1; step <= 10000; ++step)
      story.step_losses[name].push_back({step, 2 + 10.0 / step});
  return story;
}

}  // namespace xffl::test
