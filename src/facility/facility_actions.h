// Performs the state machine's actions at a facility.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "xffl/facility/context.h"
#include "xffl/facility/machine.h"
#include "xffl/transfer/transfer.h"

namespace xffl::facility {

class FacilityActions {
 public:
  FacilityActions(Context& context, const plan::RoundPlan& plan,
                  const plan::FacilityPlan& facility);

  /// Does the action and says what came of it. A failure of the link or of the facility is an
  /// event; what is wrong on this machine throws, as does kCancelled on `stop`.
  Event perform(const Action& action, std::stop_token stop);

  /// Lets a job go that stays for the next round, or will: of this round's accepted attempt or that
  /// of the round before. Failing to harms nothing: it ends by itself, and is only logged.
  void let_go();
  /// The job that may take this attempt without the queue.
  std::optional<submit::Offer> offer(int attempt) const;
  /// Fetches an accepted update again when its archived files are damaged. Says why when the
  /// facility does not have it any more, or could not be reached for `max_outage` or until
  /// `gives_up`, which is asked between two tries.
  std::optional<std::string> mend_archive(const history::Accepted& accepted,
                                          std::chrono::seconds max_outage,
                                          const std::function<bool()>& gives_up,
                                          std::stop_token stop);
  /// Renders the script into the archive. Returns the event ahead of its submission.
  history::SubmitIntended prepare_submission(int attempt);
  /// Warns, ahead of the attempt's submission, when the facility lacks room for what its job will
  /// write beside the model that was sent. A look that fails is only logged.
  void look_at_room(int attempt);
  job::JobSpec spec(int attempt) const;
  std::chrono::milliseconds settle_time() const { return scheduler_->settle_time(); }
  /// The end of the job's output, for people.
  std::string output_tail(int attempt);
  /// Tells the observer of a new line of metrics.
  void show_progress(int attempt);

 private:
  /// Shows the transfer to or from `folder` on the live board, now and then, and notes what it
  /// gains.
  transfer::OnProgress shown(const std::string& doing, const RemotePath& folder);
  Event push(int attempt, std::stop_token stop);
  void look_after_model(int attempt, std::stop_token stop);
  /// The model that the attempt begins with, as differences where `packs`, which it names in
  /// `spec`; with `doubts` what lies at the facility is compared.
  history::Pushed push_base(int attempt, job::JobSpec& spec, bool packs, bool doubts,
                            std::stop_token stop);
  std::optional<history::Pushed> push_packed(int attempt, job::JobSpec& spec, std::stop_token stop);
  std::string model_hashes(const job::JobSpec& told) const;
  std::vector<int> complaints_before(int attempt, std::string_view name);
  /// Why the attempt's job could not begin with its model; empty: it did not say so, or has to bear
  /// it itself.
  std::string given_model_problem(int attempt);
  struct Moved {
    uint64_t bytes = 0;
    double seconds = 0;
  };
  Moved push_model(const std::filesystem::path& model, const RemotePath& to, bool doubts,
                   std::stop_token stop);
  /// Returns when the scheduler says that the job ends or has ended. Throws kRemote when it goes on
  /// in spite of being told some times.
  void cancel(int attempt, const JobId& job, std::stop_token stop);
  Event poll(const Poll& poll, std::stop_token stop);
  Event fetch(int attempt, std::stop_token stop);
  Event dispatch(const Action& action, std::stop_token stop);
  struct Report {
    std::string text;
    job::JobReport parsed;
  };
  // What an update is held against, on this machine.
  struct Expected {
    int64_t max_positions = 0;
    uint64_t max_bytes = 0;
    double base_norm = 0, max_change = 0;  // 0: any
    std::string update_sha256;             // empty: any
  };
  /// Opens what is here first: its damage is not the facility's.
  Expected expected_update() const;
  /// Which answers this very job.
  Report read_report(int attempt, const Expected& expected);
  /// The largest L2 norm of an update's change that is taken; 0: any.
  double max_change() const;
  RemotePath report_path(int attempt) const { return folder(attempt) / "out/report.json"; }
  /// The report, and the update that it names in the archive. Throws kRemote when the report, which
  /// was there before, is not to be seen.
  Report bring(int attempt, const Expected& expected, std::stop_token stop);
  /// Returns the norm of the update's change over its model's; 0: not measured.
  double check_change(const Expected& expected) const;
  history::Accepted keep_accepted(int attempt, const Report& report) const;
  /// The facility answers, has the run's folder, and no report in it.
  bool has_lost(int attempt) const;
  void set_refused_aside(int attempt);
  std::optional<std::string> archive_problem(const history::Accepted& accepted) const;
  // While what fails may be mended by waiting.
  struct Patience {
    std::chrono::seconds max_outage;
    const std::function<bool()>& gives_up;
    std::stop_token stop;
  };
  template <class Body>
  auto patiently(const Patience& patience, const std::string& doing, Body&& body);
  std::string script(int attempt) const;
  history::FacilityState state(int round) const {
    return context_.history.facility(round, facility_.facility);
  }
  submit::JobRequest request(int attempt) const;
  /// The job of an attempt, by the names that it may have.
  submit::SubmittedJob submitted(int attempt, const JobId& job) const;
  uint64_t max_update_bytes() const;
  RemotePath folder(int attempt) const { return plan::attempt_folder(facility_, attempt); }
  std::filesystem::path archive() const {
    return context_.folder.facility(plan_.round, facility_.facility);
  }

  Context& context_;
  const plan::RoundPlan& plan_;
  const plan::FacilityPlan& facility_;
  const config::Facility& settings_;
  std::shared_ptr<remote::Session> session_;
  std::shared_ptr<remote::Session> bulk_;  // for models and updates
  std::shared_ptr<submit::Scheduler> scheduler_;
  std::string last_metrics_line_;
  int room_looked_at_ = 0;                          // of this attempt
  std::optional<Clock::MonotonicTime> model_seen_;  // whole at the facility
  std::map<std::string, uint64_t> in_place_;  // the most that a try found there, by its folder
  uint64_t gained_ = 0;                       // ... beyond the tries before, in this action
};

}  // namespace xffl::facility
