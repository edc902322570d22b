// A shared file system that shows a node's files late, and not in the order of their creation: the
// node has a mount of its own, and the test copies its files to the login node's mount.
#include <gtest/gtest.h>

#include "e2e/testbed_project.h"
#include "xffl/base/file.h"

namespace xffl {
namespace {

using test::await;
using test::Facility;
using test::local_sha256;
using test::TestbedProject;

ProcessResult on_node(const Facility& facility, const std::string& script) {
  return facility.exec_on_login(
      {"sh", "-c", "exec nsenter -t $(cat /run/xffl/node1.pid) -m -p sh -ec \"$0\"", script});
}

// The report is visible three seconds before the update, and the update's model four seconds before
// its second half. The coordinator reads the update three times, a settle time of five seconds
// apart.
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
  const ProcessResult shown = on_node(
      alba,
      "cd /mnt/own\ntar --exclude=update -cf - . | tar -xpf - -C /mnt/shared\nsleep 3\n"
      "update=$(find . -type d -name update)\nmkdir /mnt/shared/$update\nchown "
      "--reference=$update /mnt/shared/$update\ncp -p $update/manifest.json $update/config.json "
      "/mnt/shared/$update/\nhead -c 300 $update/model.safetensors "
      ">/mnt/shared/$update/model.safetensors\nchown --reference=$update "
      "/mnt/shared/$update/model.safetensors\nsleep 4\ncp -p $update/model.safetensors "
      "/mnt/shared/$update/\n");
  ASSERT_EQ(shown.exit_code, 0) << shown.err;
  ASSERT_EQ(run.finish(), 0) << read_file(project.log(), 1 << 20);
  project.expect_result(local_sha256([](test::Project& here) { here.set_rounds(1); }), "",
                        {"alba 1 1", "brno 1 1"});
  EXPECT_EQ(project.count_events("attempt_failed"), 0);
}

}  // namespace
}  // namespace xffl
