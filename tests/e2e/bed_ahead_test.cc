// Global models that go to real facilities while they are made.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "e2e/bed_project.h"
#include "xffl/base/json.h"

namespace xffl {
namespace {

namespace fs = std::filesystem;
using test::await;
using test::BedProject;

constexpr int kRows = 2'200'000;  // 35 MB: 3 s at 100 Mbit/s

// Of an attempt's push; 0 where none is on record.
double ahead_bytes(const BedProject& project, const std::string& facility, int round) {
  for (const journal::Event& event : project.events())
    if (event.kind == "pushed" && event.facility == facility && event.round == round)
      return parse_json(event.payload, "pushed").value("ahead_bytes", 0.0);
  return 0;
}

// The part of the second model that has arrived at alba, as this machine sees it.
uintmax_t arrived(const BedProject& project) {
  std::error_code none;
  const fs::path runs = project.facility("alba").folder / "scratch/work/test";
  for (const auto& run : fs::directory_iterator(runs, none)) {
    const uintmax_t size = fs::file_size(run.path() / "alba/ahead/.model.safetensors.part", none);
    if (!none) return size;
  }
  return 0;
}

TEST(BedAhead, ACoordinatorThatDiesMeanwhileLeavesWhatTheNextOneContinues) {
  test::Project here;
  here.set_model_rows(kRows);
  here.write_config();
  ASSERT_EQ(here.run().exit_code, 0);
  BedProject project;
  NEED_BED(project);
  project.set_model_rows(kRows);
  project.write_config();
  project.facility("alba").wan(2, 100, 0);
  auto run = project.start_run();
  ASSERT_TRUE(await([&] { return arrived(project) > 1 << 20; })) << project.status();
  run.kill();
  project.facility("alba").wan_off();
  EXPECT_EQ(ahead_bytes(project, "alba", 1), 0);
  const ProcessResult again = project.run();
  EXPECT_EQ(again.exit_code, 0) << again.err;
  project.expect_result(here.current_sha256());
  for (const char* name : {"alba", "brno"}) EXPECT_GT(ahead_bytes(project, name, 3), 30e6) << name;
  EXPECT_EQ(arrived(project), 0u);
}

}  // namespace
}  // namespace xffl
