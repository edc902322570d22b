// Signals while jobs wait in a real queue and while an update is fetched from a real sshd: the
// coordinator detaches within ten seconds, and the jobs stay.
#include <gtest/gtest.h>
#include <signal.h>

#include <iostream>
#include <thread>

#include "e2e/testbed_project.h"
#include "xffl/base/error.h"

namespace xffl {
namespace {

namespace fs = std::filesystem;
using SteadyClock = std::chrono::steady_clock;
using std::chrono::seconds;
using test::await;
using test::Facility;
using test::TestbedProject;

void expect_detached(test::StartedRun& run, const std::string& state) {
  const auto asked = SteadyClock::now();
  run.signal(SIGTERM);
  EXPECT_EQ(run.finish(seconds(60)), exit_code(ErrorKind::kCancelled)) << state;
  const double waited = std::chrono::duration<double>(SteadyClock::now() - asked).count();
  std::cout << state << ": detached after " << waited << " s\n";
  EXPECT_LT(waited, 10) << state;
}

bool has_part_file(const fs::path& folder) {
  std::error_code gone;
  for (fs::recursive_directory_iterator it(folder, gone), end; !gone && it != end;
       it.increment(gone))
    if (it->path().filename().string().ends_with(".part") && it->is_regular_file(gone)) return true;
  return false;
}

TEST(TestbedSignals, DetachesFromQueuedJobsAndFromAFetch) {
  const auto change = [](test::Project& project) {
    project.set_model_rows(600'000);  // 9.6 MB
    project.set_rounds(1);
  };
  TestbedProject project;
  NEED_TESTBED(project);
  change(project);
  project.write_config();
  const Facility &alba = project.facility("alba"), &brno = project.facility("brno");
  for (const Facility* each : {&alba, &brno})
    ASSERT_EQ(each->exec_on_login({"scontrol", "update", "NodeName=" + each->name + "[1-2]",
                                   "State=DRAIN", "Reason=test"})
                  .exit_code,
              0);
  auto run = project.start_run();
  ASSERT_TRUE(project.await_events("submitted", 2)) << project.status();
  std::this_thread::sleep_for(seconds(1));
  expect_detached(run, "queued jobs");
  for (const Facility* each : {&alba, &brno})
    EXPECT_EQ(each->exec_on_login({"squeue", "-h", "-o", "%t"}).out, "PD\n");

  brno.wan(100, 1, 0);  // 9.6 MB take 77 s
  for (const Facility* each : {&alba, &brno})
    each->exec_on_login({"scontrol", "update", "NodeName=" + each->name + "[1-2]", "State=RESUME"});
  auto again = project.start_run();
  ASSERT_TRUE(await([&] { return has_part_file(project.run_folder() / "r0001/brno"); }));
  brno.wan(150, 0.0001, 0);  // 12 bytes a second
  std::this_thread::sleep_for(seconds(3));
  EXPECT_EQ(project.count_events("update_accepted"), 1) << "alba's";
  expect_detached(again, "fetch");
  brno.wan_off();
  EXPECT_EQ(project.run().exit_code, 0);
  project.expect_result(test::local_sha256(change), "", {"alba 1 1", "brno 1 1"});
}

// All packets vanish while sbatch waits for a frozen controller, which then accepts the job: with
// a limit of 20 s for Slurm's commands the dead link is noticed within 45 s, and the job is found
// and trains once.
TEST(TestbedSignals, ALinkThatDropsAllPacketsDuringSbatchIsNoticedWithin45Seconds) {
  TestbedProject project;
  NEED_TESTBED(project);
  project.set_rounds(1);
  project.write_config();
  const Facility& alba = project.facility("alba");
  alba.wan(1, 0, 0);
  alba.signal_daemon("slurmctld", SIGSTOP);  // nothing before sbatch asks it
  auto run = project.start_run();
  ASSERT_TRUE(await([&] {  // sbatch runs
    return alba.exec_on_login({"pgrep", "-x", "sbatch"}).exit_code == 0;
  }));
  alba.cut();
  const auto cut = SteadyClock::now();
  alba.signal_daemon("slurmctld", SIGCONT);
  ASSERT_TRUE(await([&] {
    const std::string status = project.status();
    return status.find("retrying") != std::string::npos ||
           status.find("no data received") != std::string::npos;
  })) << project.status();
  const double noticed = std::chrono::duration<double>(SteadyClock::now() - cut).count();
  std::cout << "a link without packets was noticed after " << noticed << " s\n";
  EXPECT_LT(noticed, 45);
  EXPECT_EQ(alba.exec_on_login({"squeue", "-h", "-t", "all", "-o", "%A"}).out, "1\n");
  alba.wan_off();
  EXPECT_EQ(run.finish(), 0);
  project.expect_result(test::local_sha256([](test::Project& p) { p.set_rounds(1); }), "",
                        {"alba 1 1", "brno 1 1"});
}

}  // namespace
}  // namespace xffl
