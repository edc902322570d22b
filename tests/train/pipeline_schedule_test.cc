// References: figures 2 of Huang et al., 2019, and 3 and 4 of Narayanan et al., 2021, by hand; and
// a simulation of the messages between stages: a rank waits for each message that it receives, and
// for the arrival of its previous message in the same direction.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "xffl/train/pipeline.h"

namespace xffl::train {
namespace {

using enum PipelineAction::Kind;
using job::PipelineSchedule;

// "F0 F1 B0 B1"
std::string text(PipelineSchedule schedule, int stage, int num_stages, int64_t num_micro_batches) {
  std::string result;
  for (const PipelineAction& action :
       pipeline_schedule(schedule, stage, num_stages, num_micro_batches)) {
    result += (result.empty() ? "" : " ") + std::string(action.kind == kForward ? "F" : "B") +
              std::to_string(action.micro_batch);
  }
  return result;
}

TEST(PipelineSchedule, GpipeRunsAllForwardThenAllBackward) {
  for (const int stage : {0, 1, 2})
    EXPECT_EQ(text(PipelineSchedule::kGpipe, stage, 3, 4), "F0 F1 F2 F3 B0 B1 B2 B3");
}

TEST(PipelineSchedule, OneForwardOneBackwardAfterAWarmUp) {
  const auto schedule = PipelineSchedule::k1F1B;
  EXPECT_EQ(text(schedule, 0, 3, 5), "F0 F1 F2 B0 F3 B1 F4 B2 B3 B4");
  EXPECT_EQ(text(schedule, 1, 3, 5), "F0 F1 B0 F2 B1 F3 B2 F4 B3 B4");
  EXPECT_EQ(text(schedule, 2, 3, 5), "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4");
}

TEST(PipelineSchedule, FewerMicroBatchesThanStages) {
  const auto schedule = PipelineSchedule::k1F1B;
  EXPECT_EQ(text(schedule, 0, 4, 2), "F0 F1 B0 B1");
  EXPECT_EQ(text(schedule, 3, 4, 2), "F0 B0 F1 B1");
  EXPECT_EQ(text(schedule, 0, 4, 1), "F0 B0");
  EXPECT_EQ(text(schedule, 0, 4, 0), "");
}

TEST(PipelineSchedule, OneStageKeepsOneMicroBatch) {
  for (const auto schedule : {PipelineSchedule::kGpipe, PipelineSchedule::k1F1B}) {
    EXPECT_EQ(text(schedule, 0, 1, 3), "F0 B0 F1 B1 F2 B2");
    EXPECT_EQ(max_in_flight(schedule, 0, 1, 3), 1);
  }
}

// The state of a stage; each action receives, then sends.
struct Stage {
  std::vector<PipelineAction> actions;
  size_t next = 0;
  bool received = false;  // the input of the next action
};

// Messages sent and arrived in one direction between two neighbours.
struct Link {
  std::vector<int64_t> sent;
  size_t arrived = 0;

  bool has(int64_t micro_batch) const {
    return arrived < sent.size() && sent[arrived] == micro_batch;
  }
  bool is_free() const { return arrived == sent.size(); }
};

class Simulation {
 public:
  Simulation(PipelineSchedule schedule, int num_stages, int64_t num_micro_batches)
      : num_stages_(num_stages),
        down_(static_cast<size_t>(num_stages)),
        up_(static_cast<size_t>(num_stages)) {
    for (int stage = 0; stage < num_stages; ++stage)
      stages_.push_back({pipeline_schedule(schedule, stage, num_stages, num_micro_batches)});
  }

  // Runs until no stage can continue. Returns whether all stages are done.
  bool run() {
    for (bool progress = true; progress;) {
      progress = false;
      for (int stage = 0; stage < num_stages_; ++stage)
        while (advance(stage)) progress = true;
    }
    return std::all_of(stages_.begin(), stages_.end(),
                       [](const Stage& stage) { return stage.next == stage.actions.size(); });
  }

 private:
  bool advance(int index) {
    Stage& stage = stages_[static_cast<size_t>(index)];
    if (stage.next == stage.actions.size()) return false;
    const PipelineAction& action = stage.actions[stage.next];
    const bool forward = action.kind == kForward;
    std::vector<Link>& links = forward ? down_ : up_;
    const int from = forward ? index - 1 : index + 1;
    const int to = forward ? index + 1 : index - 1;
    if (!stage.received && from >= 0 && from < num_stages_) {
      Link& link = links[static_cast<size_t>(from)];
      if (!link.has(action.micro_batch)) return false;
      ++link.arrived;
    }
    stage.received = true;
    if (to >= 0 && to < num_stages_) {
      Link& link = links[static_cast<size_t>(index)];
      if (!link.is_free()) return false;
      link.sent.push_back(action.micro_batch);
    }
    stage.received = false;
    ++stage.next;
    return true;
  }

  int num_stages_;
  std::vector<Stage> stages_;
  std::vector<Link> down_, up_;  // by the sending stage
};

void expect_each_once_and_bounded(PipelineSchedule schedule, int stage, int num_stages,
                                  int64_t count) {
  int64_t next_forward = 0, next_backward = 0, most = 0;
  for (const auto& [kind, micro_batch] : pipeline_schedule(schedule, stage, num_stages, count)) {
    if (kind == kForward) {
      EXPECT_EQ(micro_batch, next_forward++);
    } else {
      EXPECT_EQ(micro_batch, next_backward++);
    }
    EXPECT_LE(next_backward, next_forward);
    most = std::max(most, next_forward - next_backward);
  }
  EXPECT_EQ(next_forward, count);
  EXPECT_EQ(next_backward, count);
  EXPECT_EQ(most, max_in_flight(schedule, stage, num_stages, count));
  if (schedule == PipelineSchedule::k1F1B) {
    EXPECT_LE(most, num_stages - stage);
  }
}

TEST(PipelineSchedule, SchedulesDoNotDeadlock) {
  for (const auto schedule : {PipelineSchedule::kGpipe, PipelineSchedule::k1F1B}) {
    for (int num_stages = 1; num_stages <= 9; ++num_stages) {
      for (int64_t count = 0; count <= 20; ++count) {
        EXPECT_TRUE(Simulation(schedule, num_stages, count).run()) << num_stages << " " << count;
        for (int stage = 0; stage < num_stages; ++stage)
          expect_each_once_and_bounded(schedule, stage, num_stages, count);
      }
    }
  }
}

}  // namespace
}  // namespace xffl::train
