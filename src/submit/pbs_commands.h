// The commands that run at a facility with PBS, and the parsers of their output. Pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "command_scheduler.h"
#include "xffl/submit/pbs.h"

namespace xffl::submit {

class PbsCommands final : public QueueCommands {
 public:
  explicit PbsCommands(PbsSettings settings) : settings_(std::move(settings)) {}

  std::string_view title() const override { return "PBS"; }
  /// "12.server" or "12".
  bool is_id(std::string_view text) const override;
  std::vector<std::string> submit(const JobRequest& request) const override;
  /// Accepted only for a bare job id.
  Submission read_submission(const remote::CommandResult& answer) const override;
  /// Also shows ended jobs where the server keeps its job history.
  std::vector<std::string> queue(const std::vector<std::string>& names) const override;
  /// Parses the clock, the JSON of `qstat -f -F json`, and the end mark. Skips malformed jobs.
  std::optional<std::vector<QueueRow>> read_queue(std::string_view text) const override;
  std::vector<std::string> cancel(std::string_view id) const override;
  bool is_cancelled(const remote::CommandResult& answer) const override;

 private:
  PbsSettings settings_;
};

}  // namespace xffl::submit
