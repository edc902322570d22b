// The commands that run at a facility with Grid Engine, and the parsers of their output. Pure
// functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "command_scheduler.h"
#include "xffl/submit/grid_engine.h"

namespace xffl::submit {

class GridEngineCommands final : public QueueCommands {
 public:
  explicit GridEngineCommands(GridEngineSettings settings) : settings_(std::move(settings)) {}

  std::string_view title() const override { return "Grid Engine"; }
  bool is_id(std::string_view text) const override { return is_decimal_id(text); }
  std::vector<std::string> submit(const JobRequest& request) const override;
  /// As submit(), but qsub only verifies the request.
  std::vector<std::string> verify(const JobRequest& request) const;
  /// Accepted only for a bare job id.
  Submission read_submission(const remote::CommandResult& answer) const override;
  std::vector<std::string> queue(const std::vector<std::string>& names) const override;
  /// Parses the clock, the XML of `qstat -xml -r`, and the end mark. Skips malformed jobs.
  std::optional<std::vector<QueueRow>> read_queue(std::string_view text) const override;
  std::vector<std::string> accounting(const std::vector<std::string>& names) const override;
  /// Parses the records of `qacct -j` and the end mark.
  std::optional<std::vector<QueueRow>> read_accounting(std::string_view text) const override;
  /// The starts in the answer of accounting(); leaves out jobs that did not start.
  std::optional<std::vector<NamedStart>> read_starts(std::string_view text) const;
  std::vector<std::string> cancel(std::string_view id) const override;
  bool is_cancelled(const remote::CommandResult& answer) const override;

 private:
  std::vector<std::string> submission(const JobRequest& request, bool only_verify) const;

  GridEngineSettings settings_;
};

/// Parses the letters of a job's state: "qw", "hqw", "Eqw", "r", "dr". `waits_for_job`: an
/// unfinished job holds it.
JobStatus read_grid_engine_state(std::string_view letters, bool waits_for_job);

}  // namespace xffl::submit
