// A facility's job: reads job.json, writes the update, metrics.jsonl and, last, report.json.
//
// Rank 0 alone writes the update, metrics.jsonl and report.json; all ranks write their parts of
// checkpoints. Rank 0 renames the complete update to its final path, and then renames report.json.
// A job that finishes early with a checkpoint (spec.on_stop) reports without an update. A job that
// fails or is aborted writes no report.
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

/// Converts an exception of a job; returns an Error unchanged. Out-of-memory errors become kFailed
/// with advice, and file system errors become kIo. All other exceptions are bugs and become
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

/// A request to stop the job; a signal makes it.
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
  /// Each rank calls `stop` between steps and between validation batches, and rank 0 calls it
  /// between the tensors that it saves. One rank's request stops all ranks. A request must not be
  /// withdrawn.
  std::function<StopRequest()> stop;
  /// Benchmark mode: the job does not hash the model's files before training and writes no update
  /// after training. The report has no `update_sha256`.
  bool benchmark = false;
  int local_rank = 0;  // index among the ranks of this machine
};

class JobRun;

/// One job with its groups of ranks, model and optimizer. After an error in a group of several
/// ranks the caller must end the process without destroying the Job. The destructor would wait for
/// communicators and kernels that wait for the other ranks.
class Job {
 public:
  /// `spec` and `context` must outlive the Job. The constructor starts nothing.
  Job(const job::JobSpec& spec, const JobContext& context);
  ~Job();

  /// Runs the job; collective; call it once. Returns the report that rank 0 wrote, or an existing
  /// report of the same attempt. Throws kRejected (the base model is not the one that the job
  /// names), kFailed (loss or gradient not finite; the model alone needs more than the available
  /// memory), kCancelled (aborted, or finished before the first step with on_stop kUpdate), and the
  /// errors of reading and writing.
  job::JobReport run();

 private:
  std::unique_ptr<JobRun> run_;
};

}  // namespace xffl::train
