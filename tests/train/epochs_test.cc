#include "epochs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "xffl/base/error.h"
#include "xffl/tokens/sampler.h"

namespace xffl::train {
namespace {

job::TrainingSpec training_of(double epochs, int64_t batch_size, int64_t total_rounds) {
  job::TrainingSpec training;
  training.epochs = epochs;
  training.batch_size = batch_size;
  training.total_rounds = total_rounds;
  return training;
}

// The sequences of the job's steps from `first` on, of all ranks, in order.
std::vector<uint64_t> sequences_of(const job::TrainingSpec& training, int64_t round, uint64_t size,
                                   int world_size, int64_t first = 0) {
  const job::TrainingSpec job = with_steps_of_epochs(training, round, size);
  std::vector<uint64_t> all;
  std::vector<tokens::Sampler> ranks;
  for (int rank = 0; rank < world_size; ++rank)
    ranks.emplace_back(size, static_cast<uint64_t>(job.batch_size), 7, rank, world_size);
  for (int64_t step = first; step < job.steps; ++step) {
    const Positions batch = step_positions(job, round, step, size);
    EXPECT_GT(batch.count(), 0u);
    EXPECT_LE(batch.count(), static_cast<uint64_t>(job.batch_size));
    std::vector<uint64_t> of_step;
    for (tokens::Sampler& rank : ranks) {
      const std::vector<uint64_t> mine = rank.indices(batch.begin, batch.end);
      of_step.insert(of_step.end(), mine.begin(), mine.end());
    }
    std::sort(of_step.begin(), of_step.end());
    all.insert(all.end(), of_step.begin(), of_step.end());
  }
  return all;
}

// Each sequence is taken `epochs` * `rounds` times after `rounds` rounds, for every number of
// ranks.
TEST(Epochs, CoverEachSequenceOnceAnEpoch) {
  for (const auto& [epochs, rounds, times] : {std::tuple{1.0, 1, 1},
                                              {1.0, 3, 3},
                                              {0.5, 2, 1},
                                              {1.0 / 3, 3, 1},
                                              {0.1, 10, 1},
                                              {1.5, 4, 6}})
    for (const int world_size : {1, 2, 3})
      for (const uint64_t size : {uint64_t{23}, uint64_t{40}})
        for (const int64_t batch_size : {1, 4, 6, 64}) {
          std::map<uint64_t, int> taken;
          for (int64_t round = 1; round <= rounds; ++round)
            for (const uint64_t sequence :
                 sequences_of(training_of(epochs, batch_size, rounds), round, size, world_size))
              ++taken[sequence];
          EXPECT_EQ(taken.size(), size) << epochs << " " << batch_size;
          for (const auto& [sequence, count] : taken)
            EXPECT_EQ(count, times) << sequence << " of " << epochs << " " << batch_size;
        }
}

TEST(Epochs, AResumedJobTakesTheRest) {
  const job::TrainingSpec training = training_of(1, 4, 2);
  const std::vector<uint64_t> whole = sequences_of(training, 2, 23, 2);
  const std::vector<uint64_t> rest = sequences_of(training, 2, 23, 3, 4);
  EXPECT_EQ(rest, std::vector<uint64_t>(whole.begin() + 16, whole.end()));
}

TEST(Epochs, StepsCountOverTheFederation) {
  const job::TrainingSpec second = with_steps_of_epochs(training_of(0.5, 4, 4), 2, 25);
  // The halves have 13, 12, 13 and 12 sequences: 4, 3, 4 and 3 steps.
  EXPECT_EQ(second.steps, 3);
  EXPECT_EQ(second.first_step, 4);
  EXPECT_EQ(second.schedule.total_steps, 14);
  EXPECT_EQ(round_positions(0.5, 1, 25).count() + round_positions(0.5, 2, 25).count(), 25u);
}

TEST(Epochs, AnUnknownNumberOfRoundsEndsWithThisRound) {
  const job::TrainingSpec second = with_steps_of_epochs(training_of(0.5, 4, 0), 2, 25);
  EXPECT_EQ(second.first_step, 4);
  EXPECT_EQ(second.schedule.total_steps, 7);
}

TEST(Epochs, ARoundWithoutASequenceIsRefused) {
  try {
    with_steps_of_epochs(training_of(0.01, 4, 10), 1, 10);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("training.epochs 0.01 of 10 training sequences"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace xffl::train
