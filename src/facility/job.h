// A facility's job: submits, finds, queries and cancels it, and releases a kept allocation.
#pragma once

#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "site.h"

namespace xffl::facility {

class FacilityJob {
 public:
  explicit FacilityJob(Site& site) : site_(site) {}

  /// Renders the script into the archive. Returns the event ahead of its submission.
  history::SubmitIntended prepare_submission(int attempt);
  JobId submit(int attempt, std::stop_token stop);
  std::vector<JobId> find(int attempt, std::stop_token stop);
  submit::JobStatus query(int attempt, const JobId& job, std::stop_token stop);
  /// Returns when the scheduler says that the job ends or has ended. Throws kRemote when it goes on
  /// in spite of being cancelled some times.
  void cancel(int attempt, const JobId& job, std::stop_token stop);
  /// Takes the attempt's claim.
  void fence(int attempt);

  /// The kept allocation that may take this attempt without the queue.
  std::optional<submit::KeptAllocation> kept_allocation(int attempt) const;
  /// Releases the kept allocation of this round's accepted attempt or of the round before. Best
  /// effort: it expires by itself, so a failure is only logged.
  void release_allocation();

  /// The end of the job's output, for users.
  std::string output_tail(int attempt);
  /// Tells the observer of a new line of metrics.
  void show_progress(int attempt);

 private:
  std::string script(int attempt) const;
  submit::JobRequest request(int attempt) const;
  /// The job of an attempt, by the names that it may have.
  submit::SubmittedJob submitted(int attempt, const JobId& job) const;

  Site& site_;
  std::string last_metrics_line_;
};

}  // namespace xffl::facility
