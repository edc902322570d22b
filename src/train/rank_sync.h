// Agreement between ranks: one rank's error or request to stop reaches all ranks.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>

#include "xffl/comm/group.h"
#include "xffl/job/job_spec.h"
#include "xffl/train/run_job.h"

namespace xffl::train {

/// Runs `body` on rank 0 while the other ranks wait without a time-out. If `body` throws, all ranks
/// throw: rank 0 the translated() error (run_job.h), the other ranks kFailed.
void on_first_rank(comm::Group& group, at::Device device, const std::function<void()>& body);

/// Runs `body` on every rank. If `body` throws on one rank, all ranks throw: that rank the
/// translated() error, the other ranks kFailed.
void on_all_ranks(comm::Group& group, at::Device device, const std::function<void()>& body);

/// As on_all_ranks(), for long work: the other ranks wait for rank 0 without a time-out. No rank
/// may take longer than rank 0 by more than the collectives' time-out.
void on_all_ranks_without_timeout(comm::Group& group, at::Device device,
                                  const std::function<void()>& body);

/// Returns the strongest stop request of any rank.
StopRequest strongest_stop_request(comm::Group& group, at::Device device, StopRequest mine);

/// Returns the largest of the ranks' values.
int64_t max_over_ranks(comm::Group& group, at::Device device, int64_t mine);
/// Returns the sum of the ranks' values.
int64_t sum_over_ranks(comm::Group& group, at::Device device, int64_t mine);

/// Whether an early finish saves a checkpoint instead of writing an update.
bool stops_with_checkpoint(const job::JobSpec& spec);

/// The job's stop requests. They come from signals, which may have reached one rank only.
class StopControl {
 public:
  /// `spec` and `context` must outlive this object.
  StopControl(const job::JobSpec& spec, const JobContext& context)
      : spec_(spec), context_(context) {}

  /// Returns whether to finish early. Collective, the same on all ranks, and true from the first
  /// true on. Throws kCancelled if the job is aborted, or if it has no result after `steps_done`
  /// steps.
  bool should_finish(int64_t steps_done);
  /// Returns the last result of should_finish().
  bool finishing() const { return finishing_; }
  /// Throws kCancelled if this rank received an abort. Not collective; for work of rank 0 alone.
  void throw_if_aborted() const;

 private:
  const job::JobSpec& spec_;
  const JobContext& context_;
  bool finishing_ = false;
};

}  // namespace xffl::train
