// Federations of real facilities that lose a daemon or the link for a minute: the run loses nothing
// and trains nothing twice.
#include <gtest/gtest.h>
#include <signal.h>

#include <iostream>
#include <map>
#include <thread>

#include "e2e/testbed_project.h"
#include "xffl/base/file.h"

namespace xffl {
namespace {

namespace fs = std::filesystem;
using std::chrono::seconds;
using test::await;
using test::Facility;
using test::local_sha256;
using test::TestbedProject;

// The jobs end while slurmctld and sshd are down.
TEST(TestbedOutages, SurvivesAMinuteWithoutControllerOrSshd) {
  TestbedProject project;
  NEED_TESTBED(project);
  project.set_hold();
  project.write_config();
  const Facility &alba = project.facility("alba"), &brno = project.facility("brno");
  auto run = project.start_run();
  ASSERT_FALSE(project.running_job("alba").empty());
  ASSERT_FALSE(project.running_job("brno").empty());
  ASSERT_TRUE(project.await_events("submitted", 2));
  alba.stop_daemon("slurmctld");
  brno.stop_daemon("sshd");
  project.release();
  ASSERT_TRUE(await([&] { return project.trainings().size() == 2; }));
  std::this_thread::sleep_for(seconds(60));
  alba.start_daemon("slurmctld");
  brno.start_daemon("sshd");
  EXPECT_EQ(run.finish(), 0);
  project.expect_result(local_sha256());
}

// Slurm gives no answers: alba's munged is dead, brno's slurmctld is frozen.
TEST(TestbedOutages, SurvivesADeadMungeAndAFrozenController) {
  TestbedProject project({"--slurm", "MessageTimeout=5"});
  NEED_TESTBED(project);
  const Facility &alba = project.facility("alba"), &brno = project.facility("brno");
  auto run = project.start_held_run();
  alba.stop_daemon("munged");
  brno.signal_daemon("slurmctld", SIGSTOP);
  ASSERT_TRUE(await([&] {
    const std::string status = project.status();
    const size_t first = status.find("retrying");
    return first != std::string::npos && status.find("retrying", first + 1) != std::string::npos;
  })) << project.status();
  alba.start_daemon("munged");
  brno.signal_daemon("slurmctld", SIGCONT);
  project.release();
  EXPECT_EQ(run.finish(), 0);
  project.expect_result(local_sha256());
}

// The size of the largest unfinished file below `folder`.
uintmax_t part_bytes(const fs::path& folder) {
  uintmax_t bytes = 0;
  std::error_code gone;
  for (fs::recursive_directory_iterator it(folder, gone), end; it != end; it.increment(gone)) {
    if (gone) break;
    const std::string name = it->path().filename().string();
    if (name.find("part") == std::string::npos || !it->is_regular_file(gone)) continue;
    const uintmax_t size = it->file_size(gone);
    if (!gone) bytes = std::max(bytes, size);
  }
  return bytes;
}

// The link to alba drops all packets during the push of the model, brno's during the fetch of the
// update.
TEST(TestbedOutages, TransfersResumeAfterACutLink) {
  constexpr int kRows = 1'500'000;  // 24 MB: 10 s at 20 Mbit/s
  constexpr uintmax_t kSome = 1 << 20;
  const auto change = [](test::Project& project) {
    project.set_model_rows(kRows);
    project.set_rounds(2);
  };
  TestbedProject project;
  NEED_TESTBED(project);
  change(project);
  project.set_hold();
  project.write_config();
  const Facility &alba = project.facility("alba"), &brno = project.facility("brno");
  alba.wan(2, 20, 0);
  auto run = project.start_run();
  ASSERT_TRUE(await([&] { return part_bytes(alba.folder / "scratch/work") > kSome; }));
  alba.cut();
  ASSERT_TRUE(project.await_events("submitted", 1));
  EXPECT_EQ(project.count_events("pushed"), 1) << "brno's alone";
  brno.wan(2, 20, 0);
  project.release();
  ASSERT_TRUE(await([&] { return part_bytes(project.run_folder() / "r0001/brno") > kSome; }));
  brno.cut();
  EXPECT_EQ(project.count_events("update_accepted"), 0);
  ASSERT_TRUE(await([&] {
    const std::string status = project.status();
    const size_t first = status.find("retrying");
    return first != std::string::npos && status.find("retrying", first + 1) != std::string::npos;
  })) << project.status();
  for (const Facility* each : {&alba, &brno}) each->wan_off();
  EXPECT_EQ(run.finish(), 0);
  project.expect_result(local_sha256(change), "", {"alba 1 1", "alba 2 1", "brno 1 1", "brno 2 1"});
}

// alba's link loses 1 % of the packets in each direction, brno's 20 %: all files arrive, over few
// connections.
TEST(TestbedOutages, LossyLinksDeliverEverything) {
  constexpr int kRows = 40'000;  // 0.6 MB, each way
  const auto change = [](test::Project& project) {
    project.set_model_rows(kRows);
    project.set_rounds(1);
  };
  TestbedProject project;
  NEED_TESTBED(project);
  change(project);
  project.write_config();
  project.facility("alba").wan(5, 100, 1);
  project.facility("brno").wan(5, 100, 20);
  const auto began = std::chrono::steady_clock::now();
  auto run = project.start_run();
  std::map<std::string, double> arrived;
  const auto note = [&] {
    for (const history::StoredEvent& event : project.events())
      if (event.kind == "update_accepted" && !arrived.contains(event.facility))
        arrived[event.facility] =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    return arrived.size() == 2;
  };
  EXPECT_TRUE(await(note, seconds(400)));
  EXPECT_EQ(run.finish(), 0);
  std::cout << "0.6 MB there and back: alba " << arrived["alba"] << " s, brno " << arrived["brno"]
            << " s\n";
  EXPECT_LT(arrived["alba"], 60);
  EXPECT_LT(arrived["brno"], 180);
  project.expect_result(local_sha256(change), "", {"alba 1 1", "brno 1 1"});
  for (const char* name : {"alba", "brno"}) {
    const std::string log = read_file(project.facility(name).folder / "log/sshd.log", 1 << 24);
    int connections = 0;
    for (size_t at = 0; (at = log.find("Connection from", at)) != std::string::npos; ++at)
      ++connections;
    std::cout << name << ": " << connections << " connections\n";
    EXPECT_GE(connections, 1);
    EXPECT_LE(connections, name[0] == 'a' ? 6 : 18) << "six a minute at most";
  }
}

}  // namespace
}  // namespace xffl
