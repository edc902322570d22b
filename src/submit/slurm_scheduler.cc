// How it works: one squeue by user and names answers for all jobs of a facility. Ids are no key:
// one that is unknown makes the whole query fail or is dropped in silence, and after a controller
// lost its state an id may be another job's. What squeue has forgotten (it does so minutes after a
// job's end) is asked of the accounting, where there is one; what neither knows stays unknown.
#include <algorithm>
#include <atomic>
#include <mutex>

#include "slurm_answers.h"
#include "slurm_commands.h"
#include "slurm_offer.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/submit/slurm.h"

namespace xffl::submit {
namespace {

constexpr std::chrono::minutes kAccountingPause{5};  // after it did not answer
// For a job that has reported to come to its offer: its ranks end first, perhaps thousands.
constexpr std::chrono::seconds kOfferPatience{30};
constexpr std::chrono::milliseconds kOfferPause{1000};  // between two looks, at most

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return log::printable(text, 500);
}

std::string failure_of(const remote::CommandResult& answer) {
  return "exit status " + std::to_string(answer.exit_code) + ": " +
         one_line(answer.err.empty() ? answer.out : answer.err);
}

// Names stand in a list of squeue's option.
bool is_plain_name(std::string_view name) {
  return !name.empty() && name.front() != '-' &&
         name.find_first_not_of(
             "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-") ==
             std::string_view::npos;
}

[[noreturn]] void refuse(const Submission& submission, const std::string& name) {
  switch (submission.kind) {
    case Submission::Kind::kRefused:
      throw Error(ErrorKind::kConfig, "Slurm refuses " + name + ": " + submission.text);
    case Submission::Kind::kBusy:
      throw Error(ErrorKind::kBusy, "Slurm takes no job now, not " + name + ": " + submission.text);
    default:
      throw Error(ErrorKind::kRemote,
                  "it is in doubt whether Slurm took " + name + ": " + submission.text);
  }
}

class SlurmScheduler final : public Scheduler {
 public:
  SlurmScheduler(SlurmSettings settings, std::shared_ptr<remote::Session> session, Clock& clock)
      : settings_(std::move(settings)), session_(std::move(session)), clock_(clock) {}

  JobId submit(const JobRequest& request, std::stop_token stop) override {
    if (stop.stop_requested())
      throw Error(ErrorKind::kCancelled, "stopped before " + request.name + " was submitted");
    if (!is_plain_name(request.name) || request.folder.empty() || request.script.empty())
      throw Error(ErrorKind::kConfig, "a Slurm job needs a plain name, a folder and a script");
    if (request.offer && take(request, stop)) return request.offer->job;
    const auto argv =
        submit_command(slurm_options(settings_.request, request.name, request.folder), false);
    const Submission submission =
        read_submission(session_->run(argv, request.script, settings_.command_timeout, stop));
    if (submission.kind != Submission::Kind::kAccepted) refuse(submission, request.name);
    return JobId(submission.id);
  }

  std::vector<JobId> find(const JobRequest& request, std::stop_token stop) override {
    std::map<uint64_t, JobId> found;  // by number: ids grow
    const auto add = [&](const std::vector<QueueRow>& rows) {
      for (const QueueRow& row : rows)
        if (row.name == request.name && row.folder == request.folder.str() &&
            (row.had_nodes || row.status.state != JobState::kEnded))
          found.emplace(std::stoull(row.id), JobId(row.id));
    };
    if (!is_plain_name(request.name)) return {};
    if (is_takeable(request) && session_->stat(taken_file(*request.offer)))
      found.emplace(std::stoull(request.offer->job.str()), request.offer->job);
    add(ask_queue({request.name}, stop));
    add(ask_accounting({request.name}, stop));
    std::vector<JobId> ids;
    for (const auto& [number, id] : found) ids.push_back(id);
    return ids;
  }

  void decline(const Offer& offer, std::stop_token stop) override {
    const auto answer = session_->run(decline_command(offer), "", settings_.command_timeout, stop);
    if (answer.exit_code != 0)
      throw Error(ErrorKind::kRemote, "a job that stays was not let go: " + failure_of(answer));
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
    if (!left.empty()) answer(ask_accounting(names_of(left), stop), left, states);
    return states;
  }

  void cancel(const SubmittedJob& job, std::stop_token stop) override {
    if (!is_slurm_id(job.id.str())) return;  // no job of ours
    for (const std::string& name : {job.first_name, job.name})
      if (is_plain_name(name)) cancel(job.id, name, stop);
  }

  std::chrono::milliseconds settle_time() const override { return settings_.settle_time; }

 private:
  void cancel(const JobId& id, const std::string& name, std::stop_token stop) {
    const auto answer = session_->run(cancel_command(id.str(), name, settings_.request.cluster), "",
                                      settings_.command_timeout, stop);
    const std::string text = one_line(answer.err + answer.out);
    const auto says = [&](std::string_view part) { return text.find(part) != std::string::npos; };
    if (answer.exit_code == 0 && !says("error")) return;
    if (says("Invalid job id") || says("already completing or completed") ||
        says("Job has already finished"))
      return;
    throw Error(ErrorKind::kRemote,
                "scancel of job " + id.str() + " did not succeed: " + failure_of(answer));
  }

  static bool is_takeable(const JobRequest& request) {
    return request.offer && is_slurm_id(request.offer->job.str());
  }

  /// False when there is no such job, or it does not stay.
  bool take(const JobRequest& request, std::stop_token stop) {
    if (!is_takeable(request)) return false;
    const auto ends = clock_.monotonic() + kOfferPatience;
    for (std::chrono::milliseconds pause{50};; pause = std::min(pause * 2, kOfferPause)) {
      const bool waits = clock_.monotonic() < ends;
      const Taking taking =
          read_taking(session_->run(take_command(*request.offer, request.folder, waits),
                                    request.script, settings_.command_timeout, stop));
      if (taking != Taking::kComing || !waits) return taking == Taking::kTaken;
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

  /// Takes the jobs that `rows` know out of `left`; of several rows of an id the last one counts.
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
    const auto answer = session_->run(queue_command(names, settings_.request.cluster), "",
                                      settings_.command_timeout, stop);
    if (answer.exit_code != 0)
      throw Error(ErrorKind::kRemote, "squeue did not answer: " + failure_of(answer));
    auto rows = read_queue(answer.out);
    if (!rows)
      throw Error(ErrorKind::kRemote,
                  "squeue's answer is not whole: '" + one_line(answer.out.substr(0, 300)) + "'");
    return std::move(*rows);
  }

  /// Nothing when there is no accounting or it does not answer: it only adds to what squeue says.
  std::vector<QueueRow> ask_accounting(const std::vector<std::string>& names,
                                       std::stop_token stop) {
    if (no_accounting_ || clock_.monotonic() < accounting_pause_ends()) return {};
    try {
      const auto answer = session_->run(accounting_command(names, settings_.request.cluster), "",
                                        settings_.command_timeout, stop);
      if (answer.exit_code == 0)
        if (auto rows = read_accounting(answer.out)) return std::move(*rows);
      if (answer.exit_code == 127 ||
          answer.err.find("accounting storage is disabled") != std::string::npos) {
        no_accounting_ = true;
        return {};
      }
      log::debug("sacct did not answer", {{"text", failure_of(answer)}});
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kRemote) throw;
      log::debug("sacct did not answer", {{"text", error.what()}});
    }
    const std::lock_guard lock(mutex_);
    accounting_pause_ends_ = clock_.monotonic() + kAccountingPause;
    return {};
  }

  Clock::MonotonicTime accounting_pause_ends() {
    const std::lock_guard lock(mutex_);
    return accounting_pause_ends_;
  }

  const SlurmSettings settings_;
  const std::shared_ptr<remote::Session> session_;
  Clock& clock_;
  std::atomic<bool> no_accounting_{false};
  std::mutex mutex_;
  Clock::MonotonicTime accounting_pause_ends_{};
};

}  // namespace

std::shared_ptr<Scheduler> make_slurm_scheduler(SlurmSettings settings,
                                                std::shared_ptr<remote::Session> session,
                                                Clock& clock) {
  return std::make_shared<SlurmScheduler>(std::move(settings), std::move(session), clock);
}

TestOnly test_only(remote::Session& session, const SlurmSettings& settings,
                   const JobRequest& request, std::stop_token stop) {
  const auto argv =
      submit_command(slurm_options(settings.request, request.name, request.folder), true);
  const auto answer = session.run(argv, request.script, settings.command_timeout, stop);
  const std::string text = one_line(answer.err.empty() ? answer.out : answer.err);
  const bool accepted = answer.exit_code == 0;
  return {accepted,
          !accepted && classify_refusal(text, answer.exit_code) == Submission::Kind::kRefused,
          text};
}

}  // namespace xffl::submit
