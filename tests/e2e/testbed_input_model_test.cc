// An input model is damaged at a real facility while its job pends: one byte changes, the size
// stays.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "e2e/testbed_project.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"

namespace xffl {
namespace {

namespace fs = std::filesystem;
using test::await;
using test::Facility;
using test::TestbedProject;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int kRows = 5'000'000;  // of 16 bytes: more than one chunk of 64 MiB
constexpr std::streamoff kInTheSecondChunk = 70'000'000;

void set_nodes(const Facility& facility, const std::vector<std::string>& state) {
  std::vector<std::string> argv = {"scontrol", "update", "NodeName=" + facility.name + "[1-2]"};
  argv.insert(argv.end(), state.begin(), state.end());
  ASSERT_EQ(facility.exec_on_login(argv).exit_code, 0);
}

/// The only file `folder`/`name` below the facility's work folder.
fs::path file_there(const Facility& facility, const std::string& folder, const std::string& name) {
  for (const auto& entry : fs::recursive_directory_iterator(facility.folder / "scratch/work"))
    if (entry.path().filename() == name &&
        entry.path().string().find("/" + folder + "/") != std::string::npos)
      return entry.path();
  ADD_FAILURE() << "no " << name << " in " << folder << " of " << facility.name;
  return {};
}

std::vector<Json> payloads(const TestbedProject& project, const std::string& kind,
                           const std::string& facility) {
  std::vector<Json> found;
  for (const history::StoredEvent& event : project.events())
    if (event.kind == kind && event.facility == facility)
      found.push_back(parse_json(event.payload, kind));
  return found;
}

// The job script finds the damage before a foreign trainer starts; the failure does not count
// towards max_attempts: 1.
TEST(TestbedInputModel, ADamagedModelIsReportedByItsJobAndRepairedByTheBlock) {
  const auto change = [](test::Project& project) {
    project.set_model_rows(kRows);
    project.set_rounds(1);
  };
  TestbedProject project;
  NEED_TESTBED(project);
  change(project);
  project.set_policy("{on_missing: wait, poll_interval: 20ms, max_attempts: 1}");
  project.write_config();
  const Facility& brno = project.facility("brno");
  set_nodes(brno, {"State=DRAIN", "Reason=test"});
  auto run = project.start_run();
  ASSERT_TRUE(project.await_events("submitted", 2));
  EXPECT_THAT(project.jobs_left("brno"), HasSubstr("PENDING"));
  test::flip_byte(file_there(brno, "models", "model.safetensors"), kInTheSecondChunk);
  set_nodes(brno, {"State=RESUME"});
  EXPECT_EQ(run.finish(), 0);
  project.expect_result(test::local_sha256(change), "", {"alba 1 1", "brno 1 2"});
  const fs::path failure = file_there(brno, "a1", "model.failure.mended");
  EXPECT_THAT(read_file(failure, 1 << 20), HasSubstr("model.safetensors"));
  const auto failed = payloads(project, "attempt_failed", "brno");
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_THAT(failed[0].dump(), AllOf(HasSubstr("damaged"), HasSubstr("model.safetensors")));
  EXPECT_FALSE(failed[0]["charged"].get<bool>());
  const auto pushed = payloads(project, "pushed", "brno");
  ASSERT_EQ(pushed.size(), 2u);
  constexpr uint64_t kBlockBytes = 1 << 18;
  EXPECT_GE(pushed[1]["moved_bytes"].get<uint64_t>(), kBlockBytes);
  EXPECT_LT(pushed[1]["moved_bytes"].get<uint64_t>(), kBlockBytes + 10'000);
}

}  // namespace
}  // namespace xffl
