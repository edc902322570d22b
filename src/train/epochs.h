// A round's length in epochs: the positions of the sampler's stream (tokens/sampler.h) that a round
// takes, and its steps.
//
// Round r of `epochs` passes over N sequences takes the positions from (r - 1) epochs N to r epochs
// N, each rounded to a whole number. So neighbouring rounds neither share nor leave out a position,
// whatever fraction `epochs` is, and the stream holds each sequence once in each N positions. The
// last batch of a round may be smaller than the others.
#pragma once

#include <cstdint>

#include "xffl/job/job_spec.h"

namespace xffl::train {

/// The positions [begin, end).
struct Positions {
  uint64_t begin = 0, end = 0;
  uint64_t count() const { return end - begin; }
};

/// The positions of a round (1-based).
Positions round_positions(double epochs, int64_t round, uint64_t num_sequences);

/// The positions of the batch of the job's 0-based step `step`, for training.epochs > 0.
Positions step_positions(const job::TrainingSpec& training, int64_t round, int64_t step,
                         uint64_t num_sequences);

/// Returns `training` with the steps of this round, of the rounds before and of all rounds, for
/// training.epochs > 0. Throws kRejected if the round has no sequence.
job::TrainingSpec with_steps_of_epochs(job::TrainingSpec training, int64_t round,
                                       uint64_t num_sequences);

}  // namespace xffl::train
