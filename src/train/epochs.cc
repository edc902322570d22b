#include "epochs.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "xffl/base/error.h"
#include "xffl/base/json.h"

namespace xffl::train {
namespace {

uint64_t begin_of(double epochs, int64_t round, uint64_t num_sequences) {
  constexpr double kMost = 9007199254740992;  // 2^53: beyond, positions would be inexact
  const double begin = static_cast<double>(round - 1) * epochs * static_cast<double>(num_sequences);
  if (begin > kMost)
    throw Error(ErrorKind::kRejected,
                "training.epochs: round " + std::to_string(round) + " begins after 2^53 sequences");
  return static_cast<uint64_t>(std::llround(begin));
}

int64_t num_steps(const job::TrainingSpec& training, int64_t round, uint64_t num_sequences) {
  const uint64_t count = round_positions(training.epochs, round, num_sequences).count();
  const auto batch = static_cast<uint64_t>(training.batch_size);
  return static_cast<int64_t>((count + batch - 1) / batch);
}

}  // namespace

Positions round_positions(double epochs, int64_t round, uint64_t num_sequences) {
  return {begin_of(epochs, round, num_sequences), begin_of(epochs, round + 1, num_sequences)};
}

Positions step_positions(const job::TrainingSpec& training, int64_t round, int64_t step,
                         uint64_t num_sequences) {
  const Positions all = round_positions(training.epochs, round, num_sequences);
  const auto batch = static_cast<uint64_t>(training.batch_size);
  const uint64_t begin = std::min(all.end, all.begin + static_cast<uint64_t>(step) * batch);
  return {begin, std::min(all.end, begin + batch)};
}

job::TrainingSpec with_steps_of_epochs(job::TrainingSpec training, int64_t round,
                                       uint64_t num_sequences) {
  training.steps = num_steps(training, round, num_sequences);
  if (training.steps == 0)
    throw Error(ErrorKind::kRejected,
                "training.epochs " + Json(training.epochs).dump() + " of " +
                    std::to_string(num_sequences) + " training sequences gives round " +
                    std::to_string(round) +
                    " no sequence: expected at least one; use more epochs or more data");
  training.first_step = training.schedule.total_steps = 0;
  const int64_t last = std::max(training.total_rounds, round);
  for (int64_t each = 1; each <= last; ++each) {
    const int64_t steps = num_steps(training, each, num_sequences);
    if (each < round) training.first_step += steps;
    training.schedule.total_steps += steps;
  }
  return training;
}

}  // namespace xffl::train
