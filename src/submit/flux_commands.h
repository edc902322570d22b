// The commands that run at a facility with Flux, and the parsers of their output. Pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "command_scheduler.h"
#include "xffl/submit/flux.h"

namespace xffl::submit {

class FluxCommands final : public QueueCommands {
 public:
  explicit FluxCommands(FluxSettings settings) : settings_(std::move(settings)) {}

  std::string_view title() const override { return "Flux"; }
  /// The decimal form, up to 2^64.
  bool is_id(std::string_view text) const override;
  std::vector<std::string> submit(const JobRequest& request) const override;
  /// Accepted only for a bare job id.
  Submission read_submission(const remote::CommandResult& answer) const override;
  /// Also shows ended jobs, until Flux forgets them.
  std::vector<std::string> queue(const std::vector<std::string>& names) const override;
  /// Parses the clock, one line per job, and the end mark. Skips malformed lines.
  std::optional<std::vector<QueueRow>> read_queue(std::string_view text) const override;
  std::vector<std::string> cancel(std::string_view id) const override;
  bool is_cancelled(const remote::CommandResult& answer) const override;

 private:
  FluxSettings settings_;
};

}  // namespace xffl::submit
