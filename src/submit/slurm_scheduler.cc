// How it works: one squeue by user and job names answers for all jobs of a facility. Job ids are no
// key: squeue fails or is silent about an unknown id, and a controller that lost its state may give
// an id to another job. squeue forgets a job minutes after its end; the scheduler then asks the
// accounting (sacct), where accounting exists. A job that neither squeue nor sacct knows is
// JobState::kUnknown.
#include <algorithm>
#include <atomic>

#include "slurm_commands.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/submit/slurm.h"

namespace xffl::submit {
namespace {

// After sacct did not answer; polls do not wait for it meanwhile, decisions do.
constexpr std::chrono::minutes kAccountingPause{5};
// From a job's report to its offer: all ranks, perhaps thousands, must end first.
constexpr std::chrono::seconds kOfferTimeout{30};
constexpr std::chrono::milliseconds kMaxOfferPollInterval{1000};

class SlurmScheduler final : public Scheduler {
 public:
  SlurmScheduler(SlurmSettings settings, std::shared_ptr<remote::Session> session, Clock& clock)
      : settings_(std::move(settings)), session_(std::move(session)), clock_(clock) {}

  JobId submit(const JobRequest& request, std::stop_token stop) override {
    if (stop.stop_requested())
      throw Error(ErrorKind::kCancelled, "stopped before " + request.name + " was submitted");
    if (!is_plain_name(request.name) || request.folder.empty() || request.script.empty())
      throw Error(ErrorKind::kConfig, "a Slurm job needs a plain name, a folder and a script");
    if (request.kept_allocation && take(request, stop)) return request.kept_allocation->job;
    const auto argv = submit_command(
        slurm_options(settings_, request.name, request.directory(), request.may_requeue),
        request.script, false);
    const Submission submission =
        read_submission(session_->run(argv, request.script, settings_.command_timeout, stop));
    if (submission.kind != Submission::Kind::kAccepted)
      throw_rejected("Slurm", submission, request.name);
    return JobId(submission.id);
  }

  std::vector<JobId> find(const JobRequest& request, std::stop_token stop) override {
    std::map<uint64_t, JobId> found;  // by number, oldest first
    const auto add = [&](const std::vector<QueueRow>& rows) {
      for (const QueueRow& row : rows)
        if (row.name == request.name && row.folder == request.directory().str() &&
            (row.had_nodes || row.status.stays_queued || row.status.state != JobState::kEnded))
          found.emplace(std::stoull(row.id), JobId(row.id));
    };
    if (!is_plain_name(request.name)) return {};
    if (is_takeable(request) && session_->stat(taken_file(*request.kept_allocation)))
      found.emplace(std::stoull(request.kept_allocation->job.str()), request.kept_allocation->job);
    add(ask_queue({request.name}, stop));
    if (const auto rows = ask_accounting({request.name}, true, stop)) add(*rows);
    std::vector<JobId> ids;
    for (const auto& [number, id] : found) ids.push_back(id);
    return ids;
  }

  void release(const KeptAllocation& kept, std::stop_token stop) override {
    const auto answer = session_->run(release_command(kept), "", settings_.command_timeout, stop);
    if (answer.exit_code != 0)
      throw Error(ErrorKind::kRemote,
                  "the kept allocation was not released: " + failure_of(answer));
  }

  std::map<JobId, JobStatus> query(std::span<const SubmittedJob> jobs,
                                   std::stop_token stop) override {
    std::map<JobId, JobStatus> states;
    for (const SubmittedJob& job : jobs) states[job.id] = {};
    std::vector<SubmittedJob> left;
    for (const SubmittedJob& job : jobs)
      if (is_slurm_id(job.id.str()) && is_plain_name(job.name) &&
          (job.first_name.empty() || is_plain_name(job.first_name)))
        left.push_back(job);
    if (left.empty()) return states;
    answer(ask_queue(names_of(left), stop), left, states);
    if (left.empty()) return states;
    const bool decides = std::any_of(left.begin(), left.end(),
                                     [](const SubmittedJob& job) { return job.presumed_gone; });
    const bool had_answered = accounting_has_answered_;
    const auto rows = ask_accounting(names_of(left), decides, stop);
    if (!rows && decides && had_answered)
      throw Error(ErrorKind::kRemote,
                  "sacct does not answer, and squeue no longer knows the job: its end is unknown");
    if (rows) answer(*rows, left, states);
    return states;
  }

  void cancel(const SubmittedJob& job, std::stop_token stop) override {
    if (!is_slurm_id(job.id.str())) return;  // not a Slurm job
    for (const std::string& name : {job.first_name, job.name})
      if (is_plain_name(name)) cancel(job.id, name, stop);
  }

  std::chrono::milliseconds settle_time() const override { return settings_.settle_time; }
  std::optional<ClockOffset> clock_offset() const override { return clock_filter_.best(); }

 private:
  void cancel(const JobId& id, const std::string& name, std::stop_token stop) {
    const auto answer = session_->run(cancel_command(id.str(), name, settings_.cluster), "",
                                      settings_.command_timeout, stop);
    const std::string text = one_line(answer.err + answer.out);
    const auto contains = [&](std::string_view part) {
      return text.find(part) != std::string::npos;
    };
    if (answer.exit_code == 0 && !contains("error")) return;
    if (contains("Invalid job id") || contains("already completing or completed") ||
        contains("Job has already finished"))
      return;
    throw Error(ErrorKind::kRemote,
                "scancel of job " + id.str() + " failed: " + failure_of(answer));
  }

  static bool is_takeable(const JobRequest& request) {
    return request.kept_allocation && is_slurm_id(request.kept_allocation->job.str());
  }

  /// Takes the kept allocation; false when the job keeps none.
  bool take(const JobRequest& request, std::stop_token stop) {
    if (!is_takeable(request)) return false;
    const auto deadline = clock_.monotonic() + kOfferTimeout;
    for (std::chrono::milliseconds pause{50};; pause = std::min(pause * 2, kMaxOfferPollInterval)) {
      const bool wait = clock_.monotonic() < deadline;
      const TakeResult result = read_take_result(session_->run(
          take_command(*request.kept_allocation, request.folder, request.script, wait),
          request.script, settings_.command_timeout, stop));
      if (result != TakeResult::kPlanned || !wait) return result == TakeResult::kTaken;
      if (!clock_.sleep(pause, stop))
        throw Error(ErrorKind::kCancelled, "stopped before " + request.name + " was submitted");
    }
  }

  static std::vector<std::string> names_of(const std::vector<SubmittedJob>& jobs) {
    std::vector<std::string> names;
    for (const SubmittedJob& job : jobs)
      for (const std::string& name : {job.name, job.first_name})
        if (!name.empty() && std::find(names.begin(), names.end(), name) == names.end())
          names.push_back(name);
    return names;
  }

  /// Moves the jobs that `rows` mention from `left` to `states`; the last row of an id counts.
  void answer(const std::vector<QueueRow>& rows, std::vector<SubmittedJob>& left,
              std::map<JobId, JobStatus>& states) {
    std::erase_if(left, [&](const SubmittedJob& job) {
      const auto row = std::find_if(rows.rbegin(), rows.rend(), [&](const QueueRow& each) {
        return each.id == job.id.str() &&
               (each.name == job.name || (!each.name.empty() && each.name == job.first_name));
      });
      if (row == rows.rend()) return false;
      states[job.id] = row->status;
      return true;
    });
  }

  std::vector<QueueRow> ask_queue(const std::vector<std::string>& names, std::stop_token stop) {
    const Clock::UtcTime before = clock_.utc();
    const auto answer =
        session_->run(queue_command(names, settings_.cluster), "", settings_.command_timeout, stop);
    if (const auto time = read_queue_clock(answer.out))
      clock_filter_.add(*time, before, clock_.utc());
    if (answer.exit_code != 0)
      throw Error(ErrorKind::kRemote, "squeue failed: " + failure_of(answer));
    auto rows = read_queue(answer.out);
    if (!rows)
      throw Error(ErrorKind::kRemote,
                  "the answer of squeue is incomplete, or has other lines than jobs (a wrapper of "
                  "the site must write its notes to stderr): '" +
                      one_line(answer.out.substr(0, 300)) + "'");
    return std::move(*rows);
  }

  /// None when sacct does not answer; no rows without accounting. With `decides` the pause after a
  /// silent sacct does not count.
  std::optional<std::vector<QueueRow>> ask_accounting(const std::vector<std::string>& names,
                                                      bool decides, std::stop_token stop) {
    const std::vector<QueueRow> none;
    if (no_accounting_) return none;
    if (!decides && clock_.monotonic() < accounting_pause_ends_.load()) return std::nullopt;
    try {
      const auto answer = session_->run(accounting_command(names, settings_.cluster), "",
                                        settings_.command_timeout, stop);
      if (answer.exit_code == 0)
        if (auto rows = read_accounting(answer.out)) {
          accounting_has_answered_ = true;
          return rows;
        }
      if (answer.err.find("accounting storage is disabled") != std::string::npos) {
        no_accounting_ = true;
        return none;
      }
      log::debug("sacct did not answer", {{"text", failure_of(answer)}});
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kRemote) throw;
      log::debug("sacct did not answer", {{"text", error.what()}});
    }
    accounting_pause_ends_ = clock_.monotonic() + kAccountingPause;
    return std::nullopt;
  }

  const SlurmSettings settings_;
  const std::shared_ptr<remote::Session> session_;
  Clock& clock_;
  ClockFilter clock_filter_;
  std::atomic<bool> no_accounting_{false};
  // At some sites sacct never answers: decisions there rest on the queue alone.
  std::atomic<bool> accounting_has_answered_{false};
  std::atomic<Clock::MonotonicTime> accounting_pause_ends_{};
};

}  // namespace

std::shared_ptr<Scheduler> make_slurm_scheduler(SlurmSettings settings,
                                                std::shared_ptr<remote::Session> session,
                                                Clock& clock) {
  return std::make_shared<SlurmScheduler>(std::move(settings), std::move(session), clock);
}

TestOnly test_only(remote::Session& session, const SlurmSettings& settings,
                   const JobRequest& request, std::stop_token stop) {
  const auto argv = submit_command(
      slurm_options(settings, request.name, request.directory(), request.may_requeue),
      request.script, true);
  const auto answer = session.run(argv, request.script, settings.command_timeout, stop);
  const std::string text = one_line(answer.err.empty() ? answer.out : answer.err);
  const bool accepted = answer.exit_code == 0;
  return {accepted,
          !accepted && (is_no_command(answer.exit_code) ||
                        classify_rejection(text, answer.exit_code) == Submission::Kind::kRejected),
          text};
}

std::vector<AccountedStart> accounted_starts(remote::Session& session,
                                             const SlurmSettings& settings,
                                             std::span<const SubmittedJob> jobs,
                                             std::stop_token stop) {
  constexpr size_t kJobsPerQuestion = 500;
  std::map<JobId, std::string> names;
  std::vector<std::string> ids;
  for (const SubmittedJob& job : jobs)
    if (is_slurm_id(job.id.str()) && names.emplace(job.id, job.name).second)
      ids.push_back(job.id.str());
  std::vector<AccountedStart> all;
  for (size_t begin = 0; begin < ids.size(); begin += kJobsPerQuestion) {
    const std::vector<std::string> some(
        ids.begin() + static_cast<ptrdiff_t>(begin),
        ids.begin() + static_cast<ptrdiff_t>(std::min(ids.size(), begin + kJobsPerQuestion)));
    const auto answer =
        session.run(starts_command(some, settings.cluster), "", settings.command_timeout, stop);
    if (is_no_command(answer.exit_code) ||
        answer.err.find("accounting storage is disabled") != std::string::npos)
      throw Error(ErrorKind::kNotFound, "the site has no accounting (sacct)");
    const auto starts = answer.exit_code == 0 ? read_starts(answer.out) : std::nullopt;
    if (!starts) throw Error(ErrorKind::kRemote, "sacct does not answer: " + failure_of(answer));
    // The id of a job may belong to another user's job by now.
    for (const NamedStart& each : *starts)
      if (const auto job = names.find(each.start.job);
          job != names.end() && (job->second.empty() || job->second == each.name))
        all.push_back(each.start);
  }
  std::sort(all.begin(), all.end(), [](const AccountedStart& a, const AccountedStart& b) {
    return std::pair(std::stoull(a.job.str()), a.start) <
           std::pair(std::stoull(b.job.str()), b.start);
  });
  return all;
}

std::optional<std::chrono::seconds> longest_walltime(remote::Session& session,
                                                     const SlurmSettings& settings) {
  std::vector<std::string> argv = {"sinfo", "-h", "-o", "%P %l"};
  if (!settings.cluster.empty()) argv.push_back("--clusters=" + settings.cluster);
  const auto answer = session.run(argv, "", settings.command_timeout, {});
  if (answer.exit_code != 0) return std::nullopt;
  return read_longest_walltime(answer.out, settings.partition);
}

}  // namespace xffl::submit
