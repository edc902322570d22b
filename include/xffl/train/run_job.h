// A facility's job: reads job.json, writes the update, metrics.jsonl and, last, report.json.
//
// Rank 0 alone writes these files; all ranks write their parts of checkpoints. The update appears
// by rename when complete, and report.json by rename after the update. A job that finishes early
// with a checkpoint (spec.on_stop) reports without an update; a job that fails or is aborted writes
// no report.
#pragma once

#include <ATen/core/Tensor.h>

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "xffl/base/error.h"
#include "xffl/comm/group.h"
#include "xffl/job/job_report.h"
#include "xffl/job/job_spec.h"

namespace xffl::train {

/// Converts an exception of a job: returns an Error unchanged. Converts out-of-memory errors to
/// kFailed with advice, file system errors to kIo, and all other exceptions, which are bugs, to
/// kInternal.
Error translated(const std::exception& error);

/// Calls `body`; translates its exceptions and adds `context`.
template <class Body>
void with_translated_context(std::string_view context, Body&& body) {
  try {
    std::forward<Body>(body)();
  } catch (const std::exception& error) {
    Error ours = translated(error);
    ours.add_context(context);
    throw ours;
  }
}

/// A request to stop the job, made by a signal.
enum class StopRequest {
  kNone,
  kFinish,  // walltime is near: finish the step, skip validation, write the result so far
  kAbort,   // finish the step, write no result
};

struct JobContext {
  comm::Group& group;
  at::Device device;
  int local_world_size = 1;  // ranks on this machine: the default size of hybrid shard groups
  std::string trainer;       // the report's `trainer`
  /// Called on every rank between steps and between validation batches, and on rank 0 between the
  /// tensors that it saves; one rank's request stops all ranks. A request must not be withdrawn.
  std::function<StopRequest()> stop;
  /// Benchmark mode: the model's files are not hashed before training and no update is written
  /// after it; the report has no `update_sha256`.
  bool benchmark = false;
};

class JobRun;

/// One job with its groups of ranks, model and optimizer. After an error in a group of several
/// ranks the caller must end the process without destroying the Job: the destructor would wait for
/// communicators and kernels that wait for the other ranks.
class Job {
 public:
  /// Both must outlive the Job. Starts nothing.
  Job(const job::JobSpec& spec, const JobContext& context);
  ~Job();

  /// Runs the job; collective; once. Returns the report that rank 0 wrote, or an existing report of
  /// the same attempt. Throws kRejected (the base model is not the one that the job names), kFailed
  /// (loss or gradient not finite; the model alone needs more than the available memory),
  /// kCancelled (aborted, or finished before the first step with on_stop kUpdate), and the errors
  /// of reading and writing.
  job::JobReport run();

 private:
  std::unique_ptr<JobRun> run_;
};

}  // namespace xffl::train
