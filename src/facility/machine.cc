// How it works: take() notes what the event says, decide() looks at what is known and finds the
// next action; between the two lie the records. decide() goes through the steps of a round in their
// order and stops at the first that is not done, so that a restart, which only knows the journal,
// arrives at the same action.
#include "xffl/facility/machine.h"

#include <algorithm>

#include "attempt_budget.h"
#include "job_failure.h"
#include "xffl/base/clock.h"

namespace xffl::facility {
namespace {

using std::chrono::seconds;
using submit::JobState;
using submit::JobStatus;

constexpr int kLooks = 2;           // that find nothing before a submission counts as lost
constexpr int kUnknownAnswers = 3;  // before a job that nobody mentions counts as gone
constexpr seconds kPersonInterval{5};

history::Event event_of(const std::string& kind, const Json& payload) {
  return history::decode({.seq = 0,
                          .time_utc = {},
                          .kind = kind,
                          .round = 0,
                          .facility = {},
                          .attempt = 0,
                          .payload = payload.dump(-1, ' ', false, Json::error_handler_t::replace)})
      .event;
}

class Stepper {
 public:
  Stepper(const Rules& rules, Course course, const Moment& moment)
      : rules_(rules),
        course_(std::move(course)),
        known_(course_.known),
        now_(course_.now),
        moment_(moment),
        paused_(moment.paused.has_value()) {}

  Step run(const Event& event) {
    const bool link_answered = !std::holds_alternative<Unreachable>(event) &&
                               !std::holds_alternative<NeedsPerson>(event) &&
                               !std::holds_alternative<Woke>(event) &&
                               !std::holds_alternative<Postponed>(event);
    link_failed_ =
        std::holds_alternative<Unreachable>(event) || std::holds_alternative<NeedsPerson>(event);
    nothing_new_ = std::holds_alternative<Woke>(event) || std::holds_alternative<Began>(event);
    if (link_answered) {
      now_.trouble.clear();
      now_.needs_person = false;
      now_.failures = 0;
    }
    std::visit([this](const auto& e) { take(e); }, event);
    Action action = decide();
    now_.doing = action;
    return {std::move(course_), std::move(records_), std::move(action)};
  }

 private:
  // --- What came of the action ---

  void take(const Woke&) {}
  void take(const Began&) {
    // A submission that was under way when the coordinator ended: let it arrive.
    if (!known_.accepted && in_doubt()) {
      begin_doubt();
      now_.rest = rules_.settle_time;
    }
    if (watching()) watch(JobId(attempt().job_id));
    // Its job ends, or will, because it was told to: by nobody else.
    if (open() && attempt().cancel_intended)
      now_.failing = {.reason = "its cancellation had begun", .charged = false};
  }
  void take(const Completed& done) {
    if (std::holds_alternative<Push>(now_.doing)) record("pushed", done.details);
    if (std::holds_alternative<Fence>(now_.doing)) now_.fenced = true;
    if (const auto* cancelled = std::get_if<CancelJob>(&now_.doing))
      std::erase(now_.twins, cancelled->job);
  }
  void take(const Submitted& submitted) { adopt(submitted.job, false); }
  void take(const Refused& refused) {
    if (now_.doubts > 0) record("cancel_intended");
    now_.failing = {.reason = refused.why, .charged = false, .gives_up = true};
  }
  void take(const Postponed& postponed) {  // the link is well: it is no outage
    now_.failures = 0;
    now_.trouble = postponed.why;
    now_.rest = backoff(rules_.seed, ++now_.postponements);
  }
  void take(const InDoubt& doubt) {
    now_.trouble = doubt.why;
    now_.submitting = false;
    now_.empty_looks = 0;
    now_.rest = rules_.settle_time;
    if (begin_doubt() > 1) now_.rest += backoff(rules_.seed, now_.doubts - 1);
  }
  void take(const Found& found) {
    if (now_.failing || !open()) {
      now_.jobs_listed = true;
      now_.twins = found.jobs;
      if (!attempt().job_id.empty()) now_.twins.emplace_back(attempt().job_id);
      return;
    }
    if (watching()) return take_twins(found.jobs);
    if (found.jobs.empty()) {
      if (++now_.empty_looks < kLooks)
        now_.rest = rules_.settle_time;
      else
        now_.submitting = true;
      return;
    }
    now_.twins.assign(found.jobs.begin() + 1, found.jobs.end());
    adopt(found.jobs.front(), true);
  }
  void take(const Looked& looked) {
    now_.reported = looked.reported;
    if (now_.failing) {  // the last look
      now_.failing->unreported = false;
      if (looked.reported) now_.failing.reset();
      return;
    }
    if (looked.reported) return;
    if (looked.status) take_status(*looked.status);
    if (now_.over && !looked.not_unpacked.empty()) {
      now_.not_unpacked = looked.not_unpacked;
      now_.settled = true;  // it has said what came of it
      now_.rest = Nanoseconds(0);
    }
    const Nanoseconds watched = moment_.now - now_.watched_since;
    std::optional<Nanoseconds> running;
    if (now_.running_since) running = moment_.now - *now_.running_since;
    if (!now_.over) now_.rest = look_interval(rules_, watched, running);
  }
  void take(const Fetched& fetched) { record("update_accepted", fetched.details); }
  void take(const UpdateRefused& refused) {
    // The same job on the same data would most likely answer the same.
    now_.failing = {.reason = "its update was refused: " + refused.why, .gives_up = true};
  }
  void take(const ToBeContinued& stopped) {
    now_.failing = {.reason = "stopped ahead of its walltime after " +
                              std::to_string(stopped.steps) + " steps, to be continued",
                    .charged = false,
                    .steps = stopped.steps};
  }
  void take(const Unreachable& unreachable) {
    if (now_.failing && now_.failing->hurries) return skip_courtesies();
    if (open() && !now_.failing && std::holds_alternative<CancelJob>(now_.doing))
      return now_.twins.clear();
    // What a try before this one has left there counts: the link is bad, not down.
    if (unreachable.gained_bytes > 0) now_.failures = 0;
    if (++now_.failures == 1) now_.failing_since = moment_.now;
    now_.trouble = unreachable.why;
    now_.rest = backoff(rules_.seed, now_.failures);
  }
  void take(const NeedsPerson& needs) {
    if (now_.failing && now_.failing->hurries) return skip_courtesies();
    now_.trouble = needs.why;
    now_.needs_person = true;
    no_outage();
    now_.rest = std::min<Nanoseconds>(rules_.poll_interval, kPersonInterval);
  }

  void take_status(const JobStatus& status) {
    now_.status = status;
    now_.next_question = moment_.now + question_interval(rules_, moment_.now - now_.watched_since,
                                                         status.state == JobState::kPending);
    switch (status.state) {
      case JobState::kRunning:
        if (!now_.running_since) now_.running_since = moment_.now;
        [[fallthrough]];
      case JobState::kPending:
      case JobState::kHeld:
        now_.unknown_answers = 0;
        now_.over.reset();  // requeued, when it was over before
        return;
      case JobState::kUnknown:
        if (++now_.unknown_answers == 1) now_.unknown_since = moment_.now;
        if (now_.unknown_answers < kUnknownAnswers ||
            moment_.now - now_.unknown_since < 2 * rules_.settle_time)
          return;
        break;
      case JobState::kEnded:
      case JobState::kCancelled:
        break;
    }
    // The report may be late on a shared file system.
    if (now_.over)
      now_.settled = true;
    else
      now_.rest = rules_.settle_time;
    now_.over = status;
  }

  // A second start of an attempt leaves at once, as the first, which is the job, holds the claim.
  void take_twins(const std::vector<JobId>& jobs) {
    for (const JobId& job : jobs)
      if (!now_.watched.contains(job)) return adopt(job, true);
    now_.failing = failure_of(*now_.over, attempt(), now_.not_unpacked);
  }

  int begin_doubt() {
    if (++now_.doubts == 1) now_.doubting_since = moment_.now;
    return now_.doubts;
  }

  void skip_courtesies() {
    now_.fenced = now_.jobs_listed = now_.skipped = true;
    now_.twins.clear();
  }

  // --- What is known ---

  const history::Attempt& attempt() const { return known_.attempts.back(); }
  bool open() const { return !known_.attempts.empty() && !attempt().failure; }
  bool watching() const { return open() && !attempt().job_id.empty(); }
  bool in_doubt() const { return open() && attempt().submit_intended && attempt().job_id.empty(); }

  void record(std::string kind, Json payload = Json::object(), int number = 0) {
    if (number == 0 && !known_.attempts.empty()) number = attempt().number;
    apply(known_, number, event_of(kind, payload));
    records_.push_back({std::move(kind), number, std::move(payload)});
  }

  void adopt(const JobId& job, bool adopted) {
    Json details = {{"job_id", job.str()}, {"adopted", adopted}};
    for (const JobId& twin : now_.twins) details["twins"].push_back(twin.str());
    record("submitted", std::move(details));
    now_.postponements = 0;
    watch(job);
  }
  void watch(const JobId& job) {
    now_.watched.insert(job);
    now_.watched_since = now_.next_question = moment_.now;
    now_.rest = Nanoseconds(0);
    now_.running_since.reset();
    now_.status.reset();
    now_.over.reset();
    now_.settled = now_.reported = false;
    now_.not_unpacked.clear();
    now_.unknown_answers = 0;
  }

  // --- What is next ---

  Action decide() {
    for (;;) {
      if (known_.accepted || known_.missing) return Finish{};
      if (time_may_end_it()) look_at_the_time();
      if (now_.failing) {
        if (const auto action = end_attempt()) return *action;
        continue;
      }
      if (now_.rest > Nanoseconds(0)) return sleep(std::exchange(now_.rest, Nanoseconds(0)));
      if (!open()) {
        if (paused_) return wait_for_a_person();
        if (const auto action = end_its_jobs()) return *action;
        open_attempt();
        continue;
      }
      return attempt_action();
    }
  }

  Action attempt_action() {
    const int number = attempt().number;
    if (!now_.twins.empty()) return CancelJob{number, now_.twins.front()};
    if (!attempt().submit_intended) {
      if (paused_) return wait_for_a_person();
      if (!attempt().pushed) return Push{number};
      record("submit_intended");
      now_.submitting = true;
    }
    if (attempt().job_id.empty()) {
      if (!now_.submitting) return FindJobs{number};
      if (paused_) return hold_back();
      return Submit{number};
    }
    if (now_.reported) return FetchUpdate{number};
    if (now_.over && now_.settled) return FindJobs{number};
    return Look{number, JobId(attempt().job_id),
                now_.over.has_value() || moment_.now >= now_.next_question};
  }

  // A person paused the facility ahead of a submission that is on record. After a doubt another
  // look may still find a job.
  Action hold_back() {
    if (now_.empty_looks > 0) {
      now_.submitting = false;
      now_.empty_looks = kLooks - 1;
    }
    return wait_for_a_person();
  }
  Action wait_for_a_person() {
    no_outage();
    return sleep(rules_.poll_interval);
  }
  // What is waited for is not the facility.
  void no_outage() {
    now_.failures = 0;
    now_.doubting_since = moment_.now;
  }

  // Deadlines hold in every state, unless the policy is to wait. But a job's report is looked for
  // once more, one that is there is fetched, and an attempt that has failed is ended: only what
  // fails then is not tried again.
  bool time_may_end_it() const {
    if (now_.failing) return link_failed_ && !now_.failing->hurries;
    if (now_.reported) return link_failed_;
    return !(nothing_new_ && watching());
  }
  void look_at_the_time() {
    const auto left = deadline_left(rules_, moment_);
    if (left && *left <= Nanoseconds(0))
      return stop_trying("no update before the round's deadline of " +
                         std::to_string(rules_.deadline.count()) + " s" +
                         (now_.trouble.empty() ? "" : ": " + now_.trouble));
    if (now_.failures > 0 && moment_.now - now_.failing_since > rules_.max_outage)
      return stop_trying("not reachable for " + std::to_string(rules_.max_outage.count()) +
                         " s: " + now_.trouble);
    if (in_doubt() && now_.doubts > 1 && moment_.now - now_.doubting_since > rules_.max_outage)
      stop_trying("its scheduler left every submission of " +
                  std::to_string(rules_.max_outage.count()) + " s in doubt: " + now_.trouble);
  }
  void stop_trying(const std::string& why) {
    if (now_.failing)
      now_.failing->reason += "; " + why;
    else
      now_.failing = {.reason = why};
    now_.failing->gives_up = now_.failing->hurries = true;
    now_.rest = Nanoseconds(0);
    if (open() && attempt().submit_intended && !attempt().cancel_intended)
      record("cancel_intended");
  }
  Sleep sleep(Nanoseconds duration) const {
    const auto left = deadline_left(rules_, moment_);
    if (left && *left > Nanoseconds(0)) duration = std::min(duration, *left);
    return {std::max(duration, Nanoseconds(1))};
  }

  // Its job is told, its claim is taken, then the failure is on record: whoever comes later, after
  // a kill too, finds nothing that could still train.
  std::optional<Action> end_attempt() {
    if (open() && attempt().submit_intended) {
      if (now_.rest > Nanoseconds(0)) return sleep(std::exchange(now_.rest, Nanoseconds(0)));
      if (const auto action = end_its_jobs()) return action;
      // What has taken the claim has seen the attempt's folder: a report that is there is seen now.
      if (now_.failing->unreported && !now_.failing->hurries)
        return Look{attempt().number, JobId(attempt().job_id), false};
    }
    const AttemptFailure failure = *now_.failing;
    if (failure.pauses) {  // first: nothing is submitted after a kill between the two
      records_.push_back({"facility_paused", 0, {{"reason", failure.reason}}});
      paused_ = true;
    }
    if (open())
      record("attempt_failed",
             {{"reason", failure.reason}, {"charged", failure.charged}, {"steps", failure.steps}});
    if (failure.gives_up) give_up(failure.reason);
    now_ = {};
    return std::nullopt;
  }

  // Nobody begins any more once the claim is taken; whoever began before is cancelled after.
  std::optional<Action> end_its_jobs() {
    if (known_.attempts.empty()) return std::nullopt;
    const int number = attempt().number;
    const bool cancel = attempt().cancel_intended;
    if (!now_.fenced && (cancel || !attempt().failure)) return Fence{number};
    if (!cancel) return std::nullopt;
    if (!now_.jobs_listed) return FindJobs{number};
    if (!now_.twins.empty()) return CancelJob{number, now_.twins.front()};
    if (!now_.skipped) record("cancel_confirmed");
    return std::nullopt;
  }

  void give_up(const std::string& why) {
    apply(known_, 0, event_of("facility_missing", {{"reason", why}}));
    records_.push_back({"facility_missing", 0, {{"reason", why}}});
  }

  void open_attempt() {
    if (const auto spent = spent_budget(rules_, known_)) return give_up(*spent);
    const int number = known_.attempts.empty() ? 1 : attempt().number + 1;
    now_ = {};
    record("attempt_opened", Json::object(), number);
  }

  const Rules& rules_;
  Course course_;
  history::FacilityState& known_;
  Course::Volatile& now_;
  const Moment& moment_;
  bool paused_;
  bool link_failed_ = false, nothing_new_ = false;  // with this event
  std::vector<Record> records_;
};

}  // namespace

Step step(const Rules& rules, Course course, const Event& event, const Moment& moment) {
  return Stepper(rules, std::move(course), moment).run(event);
}

}  // namespace xffl::facility
