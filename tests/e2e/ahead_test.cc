// Global models go to the facilities while they are made; what comes of it is what would come
// without.
#include <gmock/gmock.h>

#include <limits>
#include <mutex>
#include <vector>

#include "e2e/world.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"

namespace xffl::test {
namespace {

namespace fs = std::filesystem;

class AheadOfThePush : public World {
 protected:
  void SetUp() override {
    project_.set_rounds(3);
    project_.set_model_rows(700'000);  // 11 MB
    project_.write_config();
  }
  round::Outcome run_with(uint64_t ahead_bytes) {
    round::World made = world();
    made.ahead_bytes = ahead_bytes;
    return round::run_federation(config::load_experiment(project_.path()),
                                 {project_.path() / "runs", RunName("0001")}, made,
                                 stop_.get_token());
  }
  /// Of a run that sends nothing ahead.
  static const std::string& expected() {
    static const std::string sha256 = [] {
      class Plain : public AheadOfThePush {
       public:
        void TestBody() override {}
        std::string result() {
          SetUp();
          return run_with(std::numeric_limits<uint64_t>::max()).model_sha256;
        }
      };
      return Plain().result();
    }();
    return sha256;
  }
  /// Notes where parts of the weights are written to; `fails` may throw before.
  void note_writes(const std::function<void(const std::string& folder)>& fails = {}) {
    watch("brno", [this, fails](const std::string& operation, const RemotePath& path) {
      if (operation != "write" || path.filename() != ".model.safetensors.part") return;
      const bool ahead = path.parent().filename() == "ahead";
      const std::string folder = ahead ? "ahead" : "models";
      const std::lock_guard lock(mutex_);
      if (order_.empty() || order_.back() != folder) order_.push_back(folder);
      if (fails) fails(folder);
    });
  }

  /// Of each round's push.
  std::vector<double> ahead_bytes(const std::string& facility) const {
    std::vector<double> bytes;
    for (const journal::Event& event : project_.events())
      if (event.kind == "pushed" && event.facility == facility)
        bytes.push_back(parse_json(event.payload, "pushed").value("ahead_bytes", 0.0));
    return bytes;
  }

  std::mutex mutex_;
  std::vector<std::string> order_;  // without repetitions
};

TEST_F(AheadOfThePush, OnlyTheFirstModelIsPushedAfterItWasMade) {
  note_writes();
  EXPECT_EQ(run_with(1).model_sha256, expected());
  EXPECT_THAT(order_, testing::ElementsAre("models", "ahead"));
  EXPECT_THAT(ahead_bytes("brno"), testing::ElementsAre(0, testing::Gt(11e6), testing::Gt(11e6)));
  EXPECT_THAT(names_in(facility_folder("brno"), "ahead"), testing::IsEmpty());
  EXPECT_EQ(project_.trainings().size(), 6u);
}

TEST_F(AheadOfThePush, WhatFailsIsThePushsToSend) {
  note_writes([](const std::string& folder) {
    if (folder == "ahead") throw Error(ErrorKind::kRemote, "the link dropped");
  });
  EXPECT_EQ(run_with(1).model_sha256, expected());
  EXPECT_THAT(order_, testing::ElementsAre("models", "ahead", "models", "ahead", "models"));
  EXPECT_THAT(names_in(facility_folder("brno"), "ahead"), testing::IsEmpty());
}

// A coordinator was killed: what lies there may be of another attempt at that model.
TEST_F(AheadOfThePush, AnEarlierCoordinatorsIsComparedOrRemoved) {
  clock_.longest_sleep = std::chrono::milliseconds(20);
  watch("brno", [&](const std::string& operation, const RemotePath& path) {
    // As the second round's model is about to be looked at.
    const std::string text = path.str();
    if (operation != "stat" || text.find("/models/") == std::string::npos) return;
    if (project_.trainings().size() == 2 && !stop_.stop_requested()) stop_.request_stop();
  });
  EXPECT_THROW(run_with(std::numeric_limits<uint64_t>::max()), Error);
  const fs::path ahead = facility_folder("brno") / "ahead";
  make_dirs(ahead);
  write_file_atomic(ahead / ".model.safetensors.part", std::string(50'000'000, 'x'));
  stop_ = std::stop_source();
  before_.clear();
  EXPECT_EQ(run_with(1).model_sha256, expected());
  EXPECT_FALSE(fs::exists(ahead));
}

// A model below the size does not: its push is one message.
TEST_F(AheadOfThePush, SmallModelsDoNot) {
  project_.set_model_rows(1000);
  note_writes();
  EXPECT_EQ(run_with(32 << 20).rounds_published, 3);
  EXPECT_THAT(order_, testing::Each("models"));
}

}  // namespace
}  // namespace xffl::test
