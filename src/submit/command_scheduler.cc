#include "command_scheduler.h"

#include <algorithm>
#include <map>
#include <set>

#include "xffl/base/error.h"
#include "xffl/base/log.h"

namespace xffl::submit {
namespace {

// Ids count up: 9 comes before 10, and "9.server" before "10.server".
struct ByNumber {
  bool operator()(const std::string& a, const std::string& b) const {
    const auto digits = [](const std::string& id) {
      return std::min(id.find_first_not_of("0123456789"), id.size());
    };
    if (digits(a) != digits(b)) return digits(a) < digits(b);
    return a < b;
  }
};

class CommandScheduler final : public Scheduler {
 public:
  CommandScheduler(std::unique_ptr<QueueCommands> commands, CommandTimes times,
                   std::shared_ptr<remote::Session> session, Clock& clock)
      : commands_(std::move(commands)),
        times_(times),
        session_(std::move(session)),
        clock_(clock) {}

  JobId submit(const JobRequest& request, std::stop_token stop) override {
    if (stop.stop_requested())
      throw Error(ErrorKind::kCancelled, "stopped before " + request.name + " was submitted");
    if (!is_plain_name(request.name) || request.folder.empty() || request.script.empty())
      throw Error(ErrorKind::kConfig,
                  "a job of " + title() + " needs a plain name, a folder and a script");
    const Submission submission = commands_->read_submission(
        session_->run(commands_->submit(request), request.script, times_.command_timeout, stop));
    if (submission.kind != Submission::Kind::kAccepted)
      throw_rejected(commands_->title(), submission, request.name);
    return JobId(submission.id);
  }

  std::vector<JobId> find(const JobRequest& request, std::stop_token stop) override {
    if (!is_plain_name(request.name)) return {};
    std::set<std::string, ByNumber> found;
    for (const auto& rows : {ask_queue({request.name}, stop), ask_accounting({request.name}, stop)})
      for (const QueueRow& row : rows)
        if (row.name == request.name &&
            (row.folder.empty() || row.folder == request.directory().str()))
          found.insert(row.id);
    std::vector<JobId> ids;
    for (const std::string& id : found) ids.push_back(JobId(id));
    return ids;
  }

  std::map<JobId, JobStatus> query(std::span<const SubmittedJob> jobs,
                                   std::stop_token stop) override {
    std::map<JobId, JobStatus> states;
    std::vector<SubmittedJob> left;
    for (const SubmittedJob& job : jobs) {
      states[job.id] = {};
      if (commands_->is_id(job.id.str()) && is_plain_name(job.name)) left.push_back(job);
    }
    if (left.empty()) return states;
    answer(ask_queue(names_of(left), stop), left, states);
    if (!left.empty()) answer(ask_accounting(names_of(left), stop), left, states);
    return states;
  }

  void cancel(const SubmittedJob& job, std::stop_token stop) override {
    if (!commands_->is_id(job.id.str()) || !is_plain_name(job.name)) return;
    const std::vector<QueueRow> rows = ask_queue({job.name}, stop);
    const auto row = std::find_if(rows.begin(), rows.end(), [&](const QueueRow& each) {
      return each.id == job.id.str() && each.name == job.name;
    });
    if (row == rows.end() || has_left_the_queue(row->status)) return;
    const auto answer =
        session_->run(commands_->cancel(job.id.str()), "", times_.command_timeout, stop);
    if (!commands_->is_cancelled(answer))
      throw Error(ErrorKind::kRemote, "the cancellation of job " + job.id.str() + " by " + title() +
                                          " failed: " + failure_of(answer));
  }

  std::chrono::milliseconds settle_time() const override { return times_.settle_time; }
  std::optional<ClockOffset> clock_offset() const override { return clock_filter_.best(); }

 private:
  std::string title() const { return std::string(commands_->title()); }

  static bool has_left_the_queue(const JobStatus& status) {
    return (status.state == JobState::kEnded || status.state == JobState::kCancelled) &&
           !status.stays_queued;
  }

  static std::vector<std::string> names_of(const std::vector<SubmittedJob>& jobs) {
    std::vector<std::string> names;
    for (const SubmittedJob& job : jobs)
      if (std::find(names.begin(), names.end(), job.name) == names.end()) names.push_back(job.name);
    return names;
  }

  /// Moves the jobs that `rows` mention from `left` to `states`; the last row of an id counts.
  static void answer(const std::vector<QueueRow>& rows, std::vector<SubmittedJob>& left,
                     std::map<JobId, JobStatus>& states) {
    std::erase_if(left, [&](const SubmittedJob& job) {
      const auto row = std::find_if(rows.rbegin(), rows.rend(), [&](const QueueRow& each) {
        return each.id == job.id.str() && each.name == job.name;
      });
      if (row == rows.rend()) return false;
      states[job.id] = row->status;
      return true;
    });
  }

  std::vector<QueueRow> ask_queue(const std::vector<std::string>& names, std::stop_token stop) {
    const Clock::UtcTime before = clock_.utc();
    const auto answer = session_->run(commands_->queue(names), "", times_.command_timeout, stop);
    if (const auto time = read_queue_clock(answer.out))
      clock_filter_.add(*time, before, clock_.utc());
    if (answer.exit_code != 0)
      throw Error(ErrorKind::kRemote, title() + " does not show its jobs: " + failure_of(answer));
    auto rows = commands_->read_queue(answer.out);
    if (!rows)
      throw Error(ErrorKind::kRemote, "the answer of " + title() + " is incomplete: '" +
                                          one_line(answer.out.substr(0, 300)) + "'");
    return std::move(*rows);
  }

  /// No rows when the accounting does not answer, or not in time (qacct reads the whole file of a
  /// cell): it only adds evidence.
  std::vector<QueueRow> ask_accounting(const std::vector<std::string>& names,
                                       std::stop_token stop) {
    const auto argv = commands_->accounting(names);
    if (argv.empty()) return {};
    try {
      const auto answer = session_->run(argv, "", times_.command_timeout, stop);
      if (answer.exit_code == 0)
        if (auto rows = commands_->read_accounting(answer.out)) return std::move(*rows);
      log::debug("the accounting did not answer", {{"text", failure_of(answer)}});
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kRemote) throw;
      log::debug("the accounting did not answer", {{"text", error.what()}});
    }
    return {};
  }

  const std::unique_ptr<QueueCommands> commands_;
  const CommandTimes times_;
  const std::shared_ptr<remote::Session> session_;
  Clock& clock_;
  ClockFilter clock_filter_;
};

}  // namespace

std::shared_ptr<Scheduler> make_command_scheduler(std::unique_ptr<QueueCommands> commands,
                                                  CommandTimes times,
                                                  std::shared_ptr<remote::Session> session,
                                                  Clock& clock) {
  return std::make_shared<CommandScheduler>(std::move(commands), times, std::move(session), clock);
}

}  // namespace xffl::submit
