// A Scheduler made of a queue manager's commands and the parsers of their answers. Grid Engine's is
// one; Slurm's scheduler, with its kept allocations, is a class of its own.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "queue_answers.h"
#include "xffl/base/clock.h"
#include "xffl/submit/scheduler.h"

namespace xffl::submit {

// The commands and answers of a queue manager. Pure functions; the names are plain words.
class QueueCommands {
 public:
  virtual ~QueueCommands() = default;
  virtual std::string_view title() const = 0;  // in messages
  virtual bool is_id(std::string_view text) const = 0;

  /// The command whose input is the script.
  virtual std::vector<std::string> submit(const JobRequest& request) const = 0;
  virtual Submission read_submission(const remote::CommandResult& answer) const = 0;
  /// Prints the clock, then this user's jobs of these names that have not ended, for read_queue().
  virtual std::vector<std::string> queue(const std::vector<std::string>& names) const = 0;
  /// Empty for an incomplete or malformed answer.
  virtual std::optional<std::vector<QueueRow>> read_queue(std::string_view text) const = 0;
  /// Prints the ended jobs of these names, for read_accounting(); empty: queue() shows them, too.
  virtual std::vector<std::string> accounting(const std::vector<std::string>& /*names*/) const {
    return {};
  }
  virtual std::optional<std::vector<QueueRow>> read_accounting(std::string_view /*text*/) const {
    return std::vector<QueueRow>();
  }
  virtual std::vector<std::string> cancel(std::string_view id) const = 0;
  /// True when the job's end is requested, or when the job has ended already.
  virtual bool is_cancelled(const remote::CommandResult& answer) const = 0;
};

struct CommandTimes {
  std::chrono::milliseconds settle_time{60'000};
  std::chrono::milliseconds command_timeout{60'000};
};

/// query() asks the accounting about the jobs that the queue does not mention; a job that neither
/// knows is JobState::kUnknown. cancel() asks for the job first, so that it never cancels a job of
/// another name whose id is the same.
std::shared_ptr<Scheduler> make_command_scheduler(std::unique_ptr<QueueCommands> commands,
                                                  CommandTimes times,
                                                  std::shared_ptr<remote::Session> session,
                                                  Clock& clock);

}  // namespace xffl::submit
