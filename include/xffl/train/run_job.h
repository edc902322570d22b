// A facility's job: job.json in; the update, metrics.jsonl and, last, report.json out.
//
// Rank 0 alone writes these; checkpoints inside the job are written by the ranks that hold their
// parts. The update appears by rename when complete; report.json by rename after it. A job that was
// told to finish and leaves a checkpoint (spec.on_stop) reports without an update; one that ends in
// any other way leaves no report.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>

#include "xffl/comm/group.h"
#include "xffl/job/job_report.h"
#include "xffl/job/job_spec.h"

namespace xffl::train {

/// What somebody asked the job to do, through signals.
enum class StopRequest {
  kNone,
  kFinish,  // walltime is near: finish the step, measure no more, write what was done
  kAbort,   // finish the step, write nothing
};

struct JobContext {
  comm::Group& group;
  at::Device device;
  int local_world_size = 1;  // ranks on this machine: the default size of hybrid shard groups
  std::string trainer;       // the report's `trainer`
  /// Asked on every rank between steps and between batches of validation, and by rank 0 between the
  /// tensors that it saves; one rank's wish stops all. Once not kNone, it must not return to it.
  std::function<StopRequest()> stop;
  /// A benchmark: neither are the model's files hashed before the training nor is an update written
  /// after it; the report has no `update_sha256`.
  bool benchmark = false;
};

class JobRun;

/// One job and what it holds: groups of ranks, model, optimizer. After an error a caller in a group
/// of several ranks ends the process while the Job is there: its end would wait for communicators
/// and for kernels that wait for the other ranks.
class Job {
 public:
  /// Both must outlive the Job. Starts nothing.
  Job(const job::JobSpec& spec, const JobContext& context);
  ~Job();

  /// Runs the job; collective; once. Returns the report that rank 0 wrote. A complete report of
  /// this very job that is already there is returned as it is. Throws kRejected (the base model is
  /// not the one named), kFailed (loss or gradient not finite; the model alone needs more memory
  /// than there is), kCancelled (aborted, or told to finish before the first step when on_stop is
  /// kUpdate), and what reading and writing throws.
  job::JobReport run();

 private:
  std::unique_ptr<JobRun> run_;
};

}  // namespace xffl::train
