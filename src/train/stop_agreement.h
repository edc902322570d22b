// What signals ask of the job, agreed on by its ranks: the signal may have reached one only.
#pragma once

#include <cstdint>

#include "xffl/job/job_spec.h"
#include "xffl/train/run_job.h"

namespace xffl::train {

/// Whether a job that is told to finish leaves a checkpoint instead of an update.
bool leaves_checkpoint(const job::JobSpec& spec);

class StopAgreement {
 public:
  /// Both must outlive this object.
  StopAgreement(const job::JobSpec& spec, const JobContext& context)
      : spec_(spec), context_(context) {}

  /// Whether to finish early: asked by all ranks at the same points, and the same on all; once true
  /// it stays. Throws kCancelled when the job is aborted, or would leave nothing after so many
  /// steps.
  bool told_to_finish(int64_t steps_done);
  /// What told_to_finish() has said.
  bool finishing() const { return finishing_; }
  /// For what rank 0 does alone. Throws kCancelled.
  void end_if_aborted() const;

 private:
  const job::JobSpec& spec_;
  const JobContext& context_;
  bool finishing_ = false;
};

}  // namespace xffl::train
