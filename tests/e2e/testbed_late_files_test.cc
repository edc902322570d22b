// A shared file system that shows a node's files late, and not in the order of their creation: the
// node has a mount of its own, and the test copies its files to the login node's mount.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <sstream>

#include "e2e/testbed_project.h"
#include "xffl/base/file.h"

namespace xffl {
namespace {

using test::await;
using test::Facility;
using test::local_sha256;
using test::TestbedProject;
using testing::HasSubstr;

ProcessResult on_node(const Facility& facility, const std::string& script) {
  return facility.exec_on_login(
      {"sh", "-c", "exec nsenter -t $(cat /run/xffl/node1.pid) -m -p sh -ec \"$0\"", script});
}

// The coordinator reads the update three times, a settle time apart. Its first reading finds the
// report without the update, the second one half of the update's model, the third one all. The
// coordinator is stopped while the test copies.
TEST(TestbedLateFiles, AReportBeforeItsUpdateAndAHalfFileAreReadAgain) {
  TestbedProject project;
  NEED_TESTBED(project);
  const Facility& alba = project.facility("alba");
  test::Placement place =
      placement(alba, "", "nodes: 1, time: 5m, warning: 1m, extra: ['--nodelist=alba1']");
  const std::string settle_time = "settle_time: 2s";
  place.yaml.replace(place.yaml.find(settle_time), settle_time.size(), "settle_time: 5s");
  project.place("alba", place);
  project.set_rounds(1);
  project.write_config();
  const ProcessResult mounted = on_node(
      alba,
      "mount -t tmpfs own /mnt\nmkdir /mnt/shared /mnt/own /mnt/work\nmount --bind /scratch "
      "/mnt/shared\nchown --reference=/mnt/shared /mnt/own\nmount -t overlay late -o "
      "lowerdir=/mnt/shared,upperdir=/mnt/own,workdir=/mnt/work /scratch\n");
  if (mounted.exit_code != 0) GTEST_SKIP() << "no overlay here: " << mounted.err;
  auto run = project.start_run();
  ASSERT_TRUE(await([&] { return !on_node(alba, "find /mnt/own -name report.json").out.empty(); }));
  const auto show = [&](const std::string& script) {
    run.signal(SIGSTOP);
    const ProcessResult shown = on_node(
        alba,
        "cd /mnt/own\nupdate=$(find . -type d -name update)\nto=/mnt/shared/$update\n" + script);
    EXPECT_EQ(shown.exit_code, 0) << shown.err;
    run.signal(SIGCONT);
  };
  // The problems of the readings that did not match the report.
  const auto mismatches = [&] {
    std::vector<std::string> lines;
    std::istringstream log(read_file(project.log(), 1 << 20));
    for (std::string line; std::getline(log, line);)
      if (line.find("an update does not match its report: reading it again") != std::string::npos)
        lines.push_back(line);
    return lines;
  };
  show("tar --exclude=update -cf - . | tar -xpf - -C /mnt/shared\n");
  ASSERT_TRUE(await([&] { return mismatches().size() == 1; })) << project.status();
  show(
      "mkdir $to\ncp -p $update/manifest.json $update/config.json $to/\nhead -c 300 "
      "$update/model.safetensors >$to/model.safetensors\nchown --reference=$update $to "
      "$to/model.safetensors\n");
  ASSERT_TRUE(await([&] { return mismatches().size() == 2; })) << project.status();
  show("cp -p $update/model.safetensors $to/\n");
  ASSERT_EQ(run.finish(), 0) << read_file(project.log(), 1 << 20);
  project.expect_result(local_sha256([](test::Project& here) { here.set_rounds(1); }), "",
                        {"alba 1 1", "brno 1 1"});
  EXPECT_EQ(project.count_events("attempt_failed"), 0);
  ASSERT_EQ(mismatches().size(), 2u);
  EXPECT_THAT(mismatches()[0], HasSubstr("manifest.json"));
  EXPECT_THAT(mismatches()[1], HasSubstr("model.safetensors"));
}

}  // namespace
}  // namespace xffl
