// Global models are pushed as differences to real facilities: the run has the model of a run
// without packing, and no damage of the reference makes a training run twice.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <memory>

#include "e2e/testbed_project.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"

namespace xffl {
namespace {

namespace fs = std::filesystem;
using test::await;
using test::TestbedProject;

constexpr int kRows = 20000;  // of 16 bytes
const std::string kPacks = "    transfer: {pack: always}\n";

class TestbedPack : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    project_ = std::make_unique<TestbedProject>();
    project_->set_model_rows(kRows);
    expected_ = test::local_sha256([](test::Project& local) { local.set_model_rows(kRows); });
  }
  static void TearDownTestSuite() { project_.reset(); }

  void SetUp() override {
    if (!project_->up()) GTEST_SKIP() << project_->why_not();
    project_->forget_runs();
    project_->set_policy("{on_missing: wait, poll_interval: 20ms, max_attempts: 1}");
    ask("nodes: 2, time: 5m, warning: 1m");
    project_->set_hold();
    project_->write_config();
  }
  static TestbedProject& project() { return *project_; }

  static void ask(const std::string& slurm) {
    for (const char* name : {"alba", "brno"})
      project_->place(name, test::placement(project_->facility(name), kPacks, slurm));
  }
  /// "facility round attempt" of each packed push. Expects fewer bytes than for the whole model.
  static std::vector<std::string> packed() {
    std::vector<std::string> pushes;
    for (const history::StoredEvent& event : project_->events()) {
      if (event.kind != "pushed") continue;
      const Json payload = parse_json(event.payload, "pushed");
      if (!payload.contains("whole_bytes")) continue;
      EXPECT_LT(payload["moved_bytes"].get<double>(), 0.8 * payload["whole_bytes"].get<double>());
      pushes.push_back(event.facility + " " + std::to_string(event.round) + " " +
                       std::to_string(event.attempt));
    }
    std::sort(pushes.begin(), pushes.end());
    return pushes;
  }
  /// The local path of the facility's run folder.
  static fs::path work(const std::string& name) {
    std::error_code none;
    const fs::path runs = project_->facility(name).folder / "scratch/work/test";
    for (const auto& run : fs::directory_iterator(runs, none)) return run.path() / name;
    return {};
  }
  static std::vector<fs::path> models(const std::string& name) {
    std::vector<fs::path> found;
    std::error_code none;
    for (const auto& model : fs::directory_iterator(work(name) / "models", none))
      if (fs::exists(model.path() / "manifest.json")) found.push_back(model.path());
    return found;
  }

  static std::unique_ptr<TestbedProject> project_;
  static std::string expected_;
};

std::unique_ptr<TestbedProject> TestbedPack::project_;
std::string TestbedPack::expected_;

TEST_F(TestbedPack, LaterRoundsAreDifferences) {
  project().release();
  ASSERT_EQ(project().run().exit_code, 0);
  project().expect_result(expected_);
  EXPECT_THAT(packed(), testing::ElementsAre("alba 2 1", "alba 3 1", "brno 2 1", "brno 3 1"));
  // keep_rounds applies at the facilities; the coordinator removes packed models at once.
  for (const auto& entry : fs::recursive_directory_iterator(project().run_folder()))
    EXPECT_THAT(entry.path().filename().string(), testing::Not(testing::HasSubstr("packed")));
}

TEST_F(TestbedPack, KeptAllocationsUnpackToo) {
  ask("nodes: 2, time: 5m, warning: 1m, keep_allocation: 60s");
  project().write_config();
  project().release();
  ASSERT_EQ(project().run().exit_code, 0);
  project().expect_result(expected_);
  EXPECT_THAT(packed(), testing::ElementsAre("alba 2 1", "alba 3 1", "brno 2 1", "brno 3 1"));
}

// The coordinator pushes the whole model; the failure does not count towards max_attempts: 1.
TEST_F(TestbedPack, ADamagedReferenceCostsAPush) {
  project().release("brno");
  auto run = project().start_run();
  ASSERT_TRUE(await([] { return models("alba").size() == 1; }));
  ASSERT_TRUE(project().await_held_training("alba"));
  {
    std::fstream model(models("alba").front() / "model.safetensors",
                       std::ios::in | std::ios::out | std::ios::binary);
    model.seekp(kRows);
    model.put('\x55');
  }
  project().release("alba");
  EXPECT_EQ(run.finish(), 0);
  project().expect_result(expected_, "",
                          {"alba 1 1", "alba 2 2", "alba 3 1", "brno 1 1", "brno 2 1", "brno 3 1"});
  std::vector<std::string> reasons;
  for (const history::StoredEvent& event : project().events())
    if (event.kind == "attempt_failed") reasons.push_back(event.payload);
  EXPECT_THAT(reasons,
              testing::ElementsAre(testing::AllOf(testing::HasSubstr("unpacking the base model"),
                                                  testing::HasSubstr("damaged"),
                                                  testing::HasSubstr("\"charged\":false"))));
}

// The coordinator makes the reference again before it packs: no job has to unpack wrong
// differences.
TEST_F(TestbedPack, ADamagedReferenceOfTheCoordinatorCostsNothing) {
  project().release();
  auto run = project().start_run({{"XFFL_FAILPOINT", "journal:stop:published"}});
  ASSERT_TRUE(run.await_stop());
  test::flip_byte(project().run_folder() / "r0000/global/model.safetensors", kRows);
  for (bool stopped = true; stopped; stopped = run.await_stop()) run.signal(SIGCONT);
  EXPECT_EQ(run.finish(), 0);
  project().expect_result(expected_);
  EXPECT_EQ(project().count_events("attempt_failed"), 0);
  EXPECT_THAT(packed(), testing::ElementsAre("alba 2 1", "alba 3 1", "brno 2 1", "brno 3 1"));
}

// The coordinator is killed after the push of the second round's packed model.
TEST_F(TestbedPack, AKillAfterThePushOfDifferencesCostsNothing) {
  project().release();
  project().hold("alba", 2);
  {
    auto killed = project().start_run();
    ASSERT_TRUE(await([] { return packed().size() >= 2; }));
    killed.kill();
  }
  project().release("alba", 2);
  EXPECT_EQ(project().run().exit_code, 0);
  project().expect_result(expected_);
  EXPECT_THAT(packed(), testing::ElementsAre("alba 2 1", "alba 3 1", "brno 2 1", "brno 3 1"));
}

}  // namespace
}  // namespace xffl
