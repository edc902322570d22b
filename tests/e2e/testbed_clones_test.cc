// Two clones of a project, which have the same names of project and run, on one account.
#include <gtest/gtest.h>

#include <algorithm>

#include "e2e/testbed_project.h"
#include "xffl/base/file.h"

namespace xffl {
namespace {

using test::Project;
using test::TestbedProject;

TEST(TestbedClones, TrainAtTheSameTimeAndDoNotCancelEachOther) {
  TestbedProject first;
  NEED_TESTBED(first);
  Project clone;
  for (const char* name : {"alba", "brno"}) {
    const test::Facility& there = first.facility(name);
    const test::Placement at = placement(there, "", "nodes: 1, time: 5m, warning: 1m");
    first.place(name, at);
    clone.place(name, at);
  }
  for (Project* project : std::initializer_list<Project*>{&first, &clone}) {
    project->set_rounds(1);
    project->set_hold();
    project->write_config();
  }
  write_file_atomic(clone.path() / "known_hosts", read_file(first.path() / "known_hosts", 1 << 20));
  const auto running = [&](const std::string& name) {
    return first.facility(name).exec_on_login({"squeue", "-h", "-t", "R", "-o", "%j"}).out;
  };
  const auto run_two = [&](const std::string& name) {
    const std::string names = running(name);
    return std::count(names.begin(), names.end(), '\n') == 2;
  };
  auto one = first.start_run();
  auto other = clone.start_run();
  EXPECT_TRUE(test::await([&] { return run_two("alba") && run_two("brno"); }))
      << "alba: " << running("alba") << "brno: " << running("brno") << first.jobs_left("alba");

  // The clone is cancelled; the first one's jobs run on.
  EXPECT_EQ(clone.xffl({"cancel", "-p", clone.path().string()}).exit_code, 0);
  EXPECT_EQ(other.finish(), 9);
  EXPECT_TRUE(test::await([&] { return !run_two("alba") && !run_two("brno"); }));
  first.release();
  EXPECT_EQ(one.finish(), 0) << read_file(first.log(), 1 << 20);
  EXPECT_EQ(first.trainings(), (std::vector<std::string>{"alba 1 1", "brno 1 1"}));
  EXPECT_EQ(first.count_events("attempt_failed"), 0);
}

}  // namespace
}  // namespace xffl
