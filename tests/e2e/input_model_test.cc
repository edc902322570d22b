// A job's input model is damaged or removed at the facility after its push.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "e2e/in_process.h"
#include "xffl/base/json.h"
#include "xffl/checkpoint/manifest.h"

namespace xffl::test {
namespace {

namespace fs = std::filesystem;
using std::chrono::seconds;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

class InputModel : public InProcessFederation {
 protected:
  // brno's copy of the input model of `round`.
  fs::path model_of(int round) const {
    const auto global = checkpoint::read_manifest(project_.run_folder() /
                                                  ("r000" + std::to_string(round - 1)) / "global");
    return facility_folder("brno") / "models" / global.root_sha256().substr(0, 16);
  }
  void flip_byte(int round, std::streamoff offset) const {
    test::flip_byte(model_of(round) / "model.safetensors", offset);
  }
  // Calls `then` between the push of brno's model and the submission of its job.
  void before_submission(const std::string& job_json, std::function<void()> then) {
    watch("brno", [=](const std::string& operation, const RemotePath& path) {
      if (operation == "rename" && path.str().ends_with(job_json)) then();
    });
  }
  std::vector<std::string> payloads(const std::string& kind) const {
    std::vector<std::string> found;
    for (const history::StoredEvent& event : project_.events())
      if (event.kind == kind) found.push_back(event.payload);
    return found;
  }
  // The bytes of brno's push.
  Json pushed(int round, int attempt) const {
    for (const history::StoredEvent& event : project_.events())
      if (event.kind == "pushed" && event.facility == "brno" && event.round == round &&
          event.attempt == attempt)
        return parse_json(event.payload, "pushed");
    return {{"moved_bytes", -1}};
  }
};

// The trainer itself does not check its input model.
TEST_F(InputModel, DamageIsRepairedAndTheAttemptDoesNotCount) {
  project_.set_policy("{on_missing: wait, poll_interval: 20ms, max_attempts: 1}");
  project_.write_config();
  const std::string expected = undisturbed_sha256(project_);
  before_submission("r0002/a1/job.json", [this] { flip_byte(2, 400); });
  EXPECT_EQ(run().rounds_published, 3);
  EXPECT_EQ(project_.current_sha256(), expected);
  EXPECT_THAT(project_.trainings(),
              ElementsAre("alba 1 1", "alba 2 1", "alba 3 1", "brno 1 1", "brno 2 2", "brno 3 1"));
  EXPECT_THAT(payloads("attempt_failed"),
              ElementsAre(AllOf(HasSubstr("damaged"), HasSubstr("model.safetensors: FAILED"),
                                HasSubstr("\"charged\":false"))));
  EXPECT_GT(pushed(2, 2)["moved_bytes"], 0);
}

TEST_F(InputModel, TheRepairMovesTheBadBlockOnly) {
  constexpr uint64_t kBlockBytes = 1 << 18;
  constexpr uint64_t kRows = 5'000'000;  // of 16 bytes: more than one chunk of 64 MiB
  project_.set_model_rows(kRows);
  project_.set_rounds(1);
  project_.write_config();
  before_submission("r0001/a1/job.json", [this] { flip_byte(1, 70'000'000); });
  EXPECT_EQ(run().rounds_published, 1);
  EXPECT_THAT(project_.trainings(), ElementsAre("alba 1 1", "brno 1 2"));
  const auto moved = pushed(1, 2)["moved_bytes"].get<uint64_t>();
  EXPECT_GE(moved, kBlockBytes);
  EXPECT_LT(moved, kBlockBytes + 10'000);
}

// A disk that damages the model again, or a job that reads another folder: later failures count as
// attempts.
TEST_F(InputModel, OneComplaintPerRoundIsAccepted) {
  project_.set_policy("{on_missing: skip, quorum: 1, poll_interval: 20ms, max_attempts: 2}");
  project_.set_rounds(1);
  project_.write_config();
  before_submission("/job.json", [this] { flip_byte(1, 400); });
  EXPECT_EQ(run().rounds_published, 1);
  EXPECT_EQ(project_.trainings(), std::vector<std::string>{"alba 1 1"});
  EXPECT_THAT(payloads("attempt_failed"),
              ElementsAre(HasSubstr("\"charged\":false"), HasSubstr("\"charged\":true"),
                          HasSubstr("\"charged\":true")));
}

class InputDifferences : public InputModel {
 protected:
  InputDifferences() {
    project_.set_model_rows(20000);
    project_.set_policy("{on_missing: wait, poll_interval: 20ms, max_attempts: 1}");
    project_.write_config();
    expected_ = undisturbed_sha256(project_);
    change_ = [](config::Experiment& experiment) {
      for (config::Facility& facility : experiment.facilities) {
        facility.access = config::AccessKind::kSsh;  // models are pushed, through local sessions
        facility.transfer.pack = config::PackModels::kAlways;
        facility.purge_after = seconds(1);
      }
    };
  }
  void expect_result() {
    EXPECT_EQ(run().rounds_published, 3);
    EXPECT_EQ(project_.current_sha256(), expected_);
    EXPECT_EQ(project_.count_events("attempt_failed"), 0);
    EXPECT_EQ(project_.trainings(), kOnceEach);
  }
  // brno's job of the second round waits for nodes until this file exists.
  fs::path nodes_of_brno() {
    const fs::path nodes = project_.path() / "nodes";
    change_ = [nodes, change = change_](config::Experiment& experiment) {
      change(experiment);
      for (config::Facility& facility : experiment.facilities)
        if (facility.name.str() == "brno")
          facility.environment.push_back("case $PWD in */r0002/*) while [ ! -e '" + nodes.string() +
                                         "' ]; do sleep 0.02; done ;; esac");
    };
    return nodes;
  }
  bool was_packed(int round) const { return pushed(round, 1).contains("whole_bytes"); }
  bool is_published(int round) const {
    return fs::exists(project_.run_folder() / ("r000" + std::to_string(round)) / "global" /
                      "manifest.json");
  }

  std::string expected_;
};

TEST_F(InputDifferences, AreSent) {
  expect_result();
  EXPECT_TRUE(was_packed(2) && was_packed(3));
  for (const auto& entry : fs::recursive_directory_iterator(project_.run_folder()))
    EXPECT_THAT(entry.path().filename().string(), Not(HasSubstr("packed")))
        << "the differences fill this machine's disk";
}

// The site has removed the reference of the differences.
TEST_F(InputDifferences, AreNotSentWithoutTheirReference) {
  std::atomic<bool> removed = false;
  watch("brno", [&](const std::string&, const RemotePath&) {
    if (!is_published(1) || removed.exchange(true)) return;
    fs::remove(model_of(1) / "model.safetensors");
  });
  expect_result();
  EXPECT_TRUE(removed);
  EXPECT_FALSE(was_packed(2));
  EXPECT_TRUE(was_packed(3)) << "it holds the second model";
}

// The reference disappears while the job waits for nodes: the coordinator pushes the whole model to
// the path at which the job expects the unpacked one.
TEST_F(InputDifferences, AreReplacedWhileTheJobWaits) {
  const fs::path nodes = nodes_of_brno();
  bool removed = false;
  brno_waits_ = [&] {
    if (!is_published(1) || fs::exists(nodes)) return false;
    if (!removed) return removed = fs::remove(model_of(1) / "model.safetensors");
    if (fs::exists(model_of(2) / "manifest.json")) std::ofstream(nodes).put('x');
    return true;
  };
  expect_result();
  EXPECT_TRUE(removed);
  EXPECT_TRUE(was_packed(2));
}

// The site removes the differences themselves: the whole model would take the link for no use.
TEST_F(InputDifferences, AreSentAgainWhileTheJobWaits) {
  const fs::path nodes = nodes_of_brno();
  fs::path differences;
  bool are_back = false, is_whole_sent = false;
  brno_waits_ = [&] {
    if (!is_published(1) || fs::exists(nodes)) return false;
    if (differences.empty()) {
      const fs::path round = facility_folder("brno") / "r0002";
      differences = round / names_in(round, "packed-").at(0) / "model.safetensors.xpk";
      EXPECT_TRUE(fs::remove(differences));
      return true;
    }
    are_back = fs::exists(differences);
    is_whole_sent = fs::exists(model_of(2) / "manifest.json");
    if (are_back || is_whole_sent) std::ofstream(nodes).put('x');
    return true;
  };
  expect_result();
  EXPECT_TRUE(are_back);
  EXPECT_FALSE(is_whole_sent);
  EXPECT_TRUE(was_packed(2));
}

}  // namespace
}  // namespace xffl::test
