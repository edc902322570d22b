// How it works: each facility's thread is a slot with the action under way and the time at which
// its answer comes; the earliest slot goes next. A kill drops every slot and all volatile state;
// the history is replayed from the journal's events, as a new process does.
#include "simulation.h"

#include <algorithm>
#include <functional>
#include <ostream>

#include "xffl/base/clock.h"
#include "xffl/base/error.h"
#include "xffl/facility/budget.h"
#include "xffl/facility/kept_allocation.h"
#include "xffl/job/job_report.h"
#include "xffl/submit/slurm.h"

namespace xffl::test {
namespace {

using namespace facility;
using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

constexpr int kRounds = 3;
constexpr int kMaxSteps = 200'000;
constexpr int kMaxFailuresWithoutPause =
    3;  // a pause is optional, and an end by time is recorded once
constexpr auto kPause = seconds(1);
constexpr auto kAfterDeadline = minutes(10);  // to tell a facility, and to end

constexpr auto kKeep = hours(6);  // the longest wait of a job that stays

struct Killed {};

struct Slot {
  FacilityName name;
  FacilityMachine machine;
  std::optional<Action> action;
  Nanoseconds at{0};
  SimulatedFacility* services = nullptr;
  int failures = 0;      // of its actions since its last pause
  bool queried = false;  // the scheduler, by the last action
};

class Federation {
 public:
  Federation(uint64_t seed, const SimulationOptions& options) : options_(options), random_(seed) {
    policy_.seed = "s";
    policy_.max_attempts = 1 + static_cast<int>(random_() % 3);
    policy_.poll_interval = seconds(1 + random_() % 60);
    policy_.settle_time = milliseconds(500 + random_() % 60'000);
    const bool waits = random_() % 3 != 0 || !options.deadlines;
    policy_.on_missing = waits ? config::OnMissing::kWait : config::OnMissing::kSkip;
    if (!waits) policy_.deadline = hours(1 + random_() % 40);
    // The grace time counts in two of three federations with deadlines.
    policy_.quorum = waits ? 0 : static_cast<int>(random_() % 3);
    policy_.quorum_grace = minutes(waits ? 30 : random_() % 600);
    const size_t count = 1 + random_() % 3;
    if (options.budgets) options_.faults.requeued = 0;
    if (options.budgets && seed % 2 == 0) {  // all jobs need about their walltimes
      options_.faults.stays = 0;
      walltime_ = hours(3);
    }
    for (size_t i = 0; i < count; ++i) {
      names_.emplace_back("f" + std::to_string(i));
      simulated_.push_back(
          std::make_unique<SimulatedFacility>(random_, options_.faults, policy_.settle_time));
      simulated_.back()->fences_work = options.fences_work;
      spent_in_excess_.push_back(0);
      // Three of four facilities have validation sets, if anybody asks at the end.
      measures_.push_back(seed % 2 == 0 && (seed / 2 + i) % 4 != 0);
    }
    if (options.budgets) set_budgets(seed);
  }

  SimulationResult run() {
    while (result_.violation.empty() && !run_state_.completed) try {
        if (++rounds_begun_ > 10'000) result_.violation = "no end after 10,000 tries of a round";
        published() < kRounds ? run_round(published() + 1) : finish();
      } catch (const Killed&) {
        ++result_.kills;
        now_ += seconds(random_() % 7200);
        restart(random_() % 2 == 0);
      }
    judge();
    result_.simulated = std::chrono::duration_cast<hours>(now_);
    return result_;
  }

 private:
  // --- Budgets ---

  // Of one or two walltimes at some facilities, and of some walltimes in all.
  void set_budgets(uint64_t seed) {
    for (size_t i = 0; i < names_.size(); ++i) {
      config::Facility facility;
      facility.name = names_[i];
      facility.scheduler = submit::QueueSettings("slurm");
      facility.scheduler.as<submit::SlurmSettings>().time = walltime_;
      if ((seed + i) % 3 != 0)
        facility.budget.node_hours =
            static_cast<double>(walltime_.count()) * static_cast<double>(1 + (seed / 3 + i) % 2);
      experiment_.facilities.push_back(facility);
    }
    if (seed % 5 < 2)
      experiment_.policy.budget.node_hours =
          static_cast<double>(walltime_.count()) * static_cast<double>(1 + seed % 4);
  }
  size_t index_of(const FacilityName& name) const {
    return static_cast<size_t>(std::find(names_.begin(), names_.end(), name) - names_.begin());
  }
  // The facts that the driver adds to a record.
  void complete(const Slot& slot, int round, int attempt, history::Event& event) {
    if (!options_.budgets) return;
    if (auto* intended = std::get_if<history::SubmitIntended>(&event)) {
      intended->nodes = 1;
      intended->walltime_s = seconds(walltime_).count();
      intended->keep_s = seconds(kKeep).count();
    }
    if (auto* failed = std::get_if<history::AttemptFailed>(&event))
      if (random_() % 10 != 0) failed->usage = usage(slot, round, attempt);
    if (auto* accepted = std::get_if<history::UpdateAccepted>(&event))
      accepted->usage = usage(slot, round, attempt);
  }
  job::JobUsage usage(const Slot& slot, int round, int attempt) {
    job::JobUsage usage = slot.services->usage(round, attempt);
    for (job::JobStart& start : usage.starts)
      if (!start.trained && !start.last_beat)  // it runs
        start.last_beat = std::max(start.start, std::chrono::floor<seconds>(now_).count() -
                                                    static_cast<int64_t>(random_() % 15));
    return usage;
  }
  // Somebody raises the budget of a facility that waits for it.
  void raise_budgets() {
    for (config::Facility& facility : experiment_.facilities)
      if (spending_.is_paused(facility.name) && facility.budget.node_hours > 0)
        facility.budget.node_hours += static_cast<double>(walltime_.count());
    if (experiment_.policy.budget.node_hours > 0)
      experiment_.policy.budget.node_hours += static_cast<double>(walltime_.count());
  }
  // Jobs that leave at once, and times in whole seconds, take 3 s each at most.
  void judge_the_budgets() {
    if (!options_.budgets) return;
    double total = 0, allowed_in_all = experiment_.policy.budget.node_hours * 3600;
    for (size_t i = 0; i < names_.size(); ++i) {
      const double used = simulated_[i]->node_seconds() - 3.0 * simulated_[i]->jobs();
      const double limit = experiment_.facilities[i].budget.node_hours * 3600;
      total += used;
      allowed_in_all += spent_in_excess_[i];
      if (limit > 0 && used > limit + spent_in_excess_[i])
        result_.violation = names_[i].str() + " has used " + std::to_string(used / 3600) +
                            " node-hours of " + std::to_string(limit / 3600);
    }
    if (experiment_.policy.budget.node_hours > 0 && total > allowed_in_all)
      result_.violation = "the run has used " + std::to_string(total / 3600) + " node-hours of " +
                          std::to_string(allowed_in_all / 3600);
  }

  // --- The journal ---

  void append(const history::EventScope& scope, const history::Event& event) {
    history::StoredEvent stored = encode(scope, event);
    stored.seq = static_cast<int64_t>(events_.size()) + 1;
    stored.time_utc =
        format_utc(Clock::UtcTime(std::chrono::duration_cast<Clock::UtcTime::duration>(now_)));
    trace("  " + stored.kind, stored.facility, stored.payload.substr(0, 160));
    const history::RecordedEvent recorded = decode(stored);
    apply(run_state_, recorded);
    spending_.add(recorded);
    events_.push_back(std::move(stored));
    if (dies(options_.kill / 10)) throw Killed{};
  }
  void trace(const std::string& what, const std::string& facility, const std::string& more) {
    if (options_.trace)
      *options_.trace << (now_ - seconds(1'767'225'600)).count() / 1e9 << " s  " << facility << "  "
                      << what << "  " << more << "\n";
  }
  bool dies(double probability) {
    return static_cast<double>(random_() % 1'000'000) < probability * 1e6;
  }
  bool waits_for_all() const { return policy_.on_missing == config::OnMissing::kWait; }
  int published() const { return run_state_.done().rounds_published; }

  void restart(bool by_a_person) {
    run_state_ = history::replay(events_);
    spending_ = {};
    for (const history::StoredEvent& event : events_) spending_.add(decode(event));
    if (run_state_.completed) return;
    const double kill = std::exchange(options_.kill, 0);
    if (by_a_person)
      append({}, history::RunStopped{.kind = std::string(to_string(ErrorKind::kFailed)),
                                     .reason = "the round failed"});
    append({}, history::RunResumed{.keeps_budgets = true});
    if (by_a_person)
      for (const FacilityName& name : names_) {
        append({.facility = name}, history::FacilityResumed{.new_budget = true});
        if (spending_.may_exceed(name))
          spent_in_excess_[index_of(name)] += static_cast<double>(seconds(walltime_).count());
      }
    options_.kill = kill;
    if (!by_a_person) return;
    ++result_.resumes;
    if (result_.resumes > 20)  // an administrator repairs the facility at last
      for (const auto& services : simulated_) services->calm();
  }

  // --- A round ---

  Now view(const Slot& slot, int round) const {
    Now now{.time = now_, .since_first_submission = {}, .paused = {}};
    if (const auto first = parse_utc(run_state_.rounds.at(round).first_submission_utc))
      now.since_first_submission = now_ - first->time_since_epoch();
    now.since_quorum = since_quorum(round);
    const auto& departed = run_state_.rounds.at(round).departed;
    if (const auto why = departed.find(slot.name); why != departed.end()) now.left = why->second;
    if (const auto why = run_state_.paused.find(slot.name); why != run_state_.paused.end())
      now.paused = why->second;
    if (options_.budgets && options_.obeys_budgets)
      now.over_budget =
          over_budget(experiment_, experiment_.facilities[index_of(slot.name)], spending_);
    now.paused_by_budget = spending_.is_paused(slot.name);
    return now;
  }

  // The members of the round that count for its quorum, as quorum_now() has it.
  int members_now(int round) const {
    const history::RoundState& state = run_state_.rounds.at(round);
    int count = 0;
    for (const FacilityName& name : state.members)
      count += state.facilities.at(name).accepted || !state.departed.contains(name);
    return count;
  }
  int quorum(int round) const { return std::max(1, plan::quorum(policy_, members_now(round))); }
  // As the driver has it, from the times on record.
  std::optional<Nanoseconds> since_quorum(int round) const {
    if (round > kRounds) return std::nullopt;
    std::vector<Nanoseconds> ages;
    for (const auto& [name, facility] : run_state_.rounds.at(round).facilities)
      if (facility.accepted)
        ages.push_back(now_ - parse_utc(facility.accepted->time_utc)->time_since_epoch());
    if (static_cast<int>(ages.size()) < quorum(round)) return std::nullopt;
    std::sort(ages.begin(), ages.end(), std::greater<>());
    return ages[static_cast<size_t>(quorum(round)) - 1];
  }

  void take(Slot& slot, int round, const facility::Event& event) {
    const Now seen = view(slot, round);
    FacilityPolicy policy = policy_;
    policy.evaluates = round > kRounds;
    Step next = step(policy, std::move(slot.machine), event, seen);
    if (options_.on_step) options_.on_step(event, next);
    for (Record& record : next.records) {
      if (std::holds_alternative<history::AttemptOpened>(record.event))
        judge_the_budget(slot, round);
      if (const auto* failed = std::get_if<history::AttemptFailed>(&record.event))
        judge_the_failure(slot, round, record.attempt, *failed);
      const auto* paused = std::get_if<history::FacilityPaused>(&record.event);
      result_.budget_pauses += paused && paused->by_budget;
      const bool of_the_run =
          paused || std::holds_alternative<history::FacilityResumed>(record.event);
      complete(slot, round, record.attempt, record.event);
      append({.round = of_the_run ? 0 : round, .facility = slot.name, .attempt = record.attempt},
             record.event);
    }
    slot.machine = std::move(next.machine);
    slot.action = std::move(next.action);
    const auto* sleep = std::get_if<Sleep>(&*slot.action);
    slot.at = now_ + (sleep && seen.left ? milliseconds(1)  // the driver ends its pauses
                      : sleep            ? sleep->duration
                                         : milliseconds(1 + random_() % 3000));
    judge(slot, event, seen);
  }

  // A facility that does not answer is left alone for a while, its scheduler is queried with
  // pauses, and a facility that is paused gets no job.
  void judge(Slot& slot, const facility::Event& event, const Now& seen) {
    const auto* sleep = std::get_if<Sleep>(&*slot.action);
    if (std::holds_alternative<Unreachable>(event) || std::holds_alternative<AuthRequired>(event))
      ++slot.failures;
    else if (!std::holds_alternative<TimerFired>(event))
      slot.failures = 0;
    if (sleep && sleep->duration >= kPause) slot.failures = 0;
    if (slot.failures > kMaxFailuresWithoutPause)
      result_.violation = slot.name.str() + " is asked again and again without a pause: it is " +
                          describe(slot.machine);
    const auto* poll = std::get_if<Poll>(&*slot.action);
    const bool queries = poll && poll->ask_scheduler;
    if (queries && slot.queried && std::holds_alternative<Polled>(event))
      result_.violation = slot.name.str() +
                          "'s scheduler is queried twice without a pause: it is " +
                          describe(slot.machine);
    slot.queried = queries;
    const bool is_paused = seen.paused && (!seen.paused_by_budget || seen.over_budget);
    if (is_paused && std::holds_alternative<Submit>(*slot.action))
      result_.violation = slot.name.str() + " is paused and gets a job";
  }
  // A round that continues without late facilities does so soon after its deadline. A round of
  // training has none before its first submission; the evaluation has one from its plan on.
  void judge_the_time(const Slot& slot, int round) {
    if (now_ < began_ + kAfterDeadline) return;
    const Now seen = view(slot, round);
    if (seen.left && now_ > departed_at_ + kAfterDeadline)
      result_.violation =
          slot.name.str() + " is still " + describe(slot.machine) + " long after it left the run";
    if (waits_for_all()) return;
    const auto since = seen.since_first_submission;
    if (since && *since > Nanoseconds(policy_.deadline) + kAfterDeadline)
      result_.violation = slot.name.str() + " is still " + describe(slot.machine) +
                          " long after the round's deadline";
    // A departure may lower the quorum.
    if (now_ < departed_at_ + kAfterDeadline) return;
    if (policy_.quorum > 0 && policy_.quorum_grace.count() > 0 && seen.since_quorum &&
        *seen.since_quorum > Nanoseconds(policy_.quorum_grace) + kAfterDeadline)
      result_.violation = slot.name.str() + " is still " + describe(slot.machine) +
                          " long after the quorum's grace time";
  }

  void run_round(int round) {
    drive(round, std::vector(names_.size(), true));
    if (result_.violation.empty()) publish(round);
  }

  // The evaluation of the last model, as evaluate_last() has it, and the end of the run.
  void finish() {
    if (std::count(measures_.begin(), measures_.end(), true) > 0) drive(kRounds + 1, measures_);
    if (result_.violation.empty()) append({}, history::RunCompleted{});
  }

  // Until the part of every facility that takes part is over.
  void drive(int round, const std::vector<bool>& takes_part) {
    if (!run_state_.rounds[round].planned) {
      history::RoundPlanned planned;
      planned.evaluates = round > kRounds;
      for (size_t i = 0; i < names_.size(); ++i)
        if (takes_part[i] && !run_state_.left.contains(names_[i]))
          planned.facilities.push_back(names_[i]);
      if (planned.facilities.empty()) return;
      append({.round = round}, planned);
    }
    std::vector<Slot> slots;
    for (size_t i = 0; i < names_.size(); ++i)
      if (run_state_.rounds.at(round).members.contains(names_[i]))
        slots.push_back({names_[i],
                         {run_state_.rounds.at(round).facilities.at(names_[i]), {}},
                         {},
                         now_,
                         simulated_[i].get()});
    began_ = now_;
    for (Slot& slot : slots) take(slot, round, Resumed{});
    while (drive_one(slots, round))
      if (!result_.violation.empty()) return;
  }

  // The driver's argument for the scheduler.
  std::optional<submit::KeptAllocation> offer(const FacilityName& name, int round) const {
    plan::FacilityPlan plan;
    plan.facility = name;
    plan.folder = RemotePath("/work");
    return kept_allocation_of(plan, round - 1, [&](int each) {
      const auto known = run_state_.rounds.find(each);
      if (known == run_state_.rounds.end()) return history::FacilityState{};
      const auto state = known->second.facilities.find(name);
      return state == known->second.facilities.end() ? history::FacilityState{} : state->second;
    });
  }

  // Somebody has heard of trouble with submissions, and pauses the facility.
  void people_hear(const Slot& slot, const facility::Event& event) {
    if (!std::holds_alternative<SubmitDeferred>(event) &&
        !std::holds_alternative<SubmitUnknown>(event))
      return;
    if (run_state_.paused.contains(slot.name) || !dies(options_.pause)) return;
    ++result_.pauses;
    append({.facility = slot.name}, history::FacilityPaused{.reason = "maintenance"});
  }

  // False when every slot is finished.
  bool drive_one(std::vector<Slot>& slots, int round) {
    Slot* next = nullptr;
    for (Slot& slot : slots)
      if (!std::holds_alternative<Finish>(*slot.action) && (!next || slot.at < next->at))
        next = &slot;
    if (!next) return false;
    if (++steps_ > kMaxSteps) {
      result_.violation = "no end after " + std::to_string(kMaxSteps) +
                          " steps: " + next->name.str() + " is " + describe(next->machine);
      return true;
    }
    now_ = std::max(now_, next->at);
    judge_the_time(*next, round);
    judge_the_budgets();
    people_look();
    people_change_members(slots, round);
    const bool killed = dies(options_.kill);
    SimulatedFacility& services = *next->services;
    // A killed coordinator's action was done or not; its answer is lost.
    if (killed && random_() % 2 == 0) throw Killed{};
    facility::Event event = services.perform(*next->action, round, now_, offer(next->name, round));
    static constexpr const char* kActions[] = {"push",   "submit", "find",  "poll",  "fetch",
                                               "cancel", "fence",  "sleep", "finish"};
    trace(kActions[next->action->index()], next->name.str(),
          std::string(name_of(event)) + (killed ? ", killed; " : "; ") + describe(next->machine));
    if (killed) throw Killed{};
    people_hear(*next, event);
    if (auto* fetched = std::get_if<Fetched>(&event))
      fetched->details = simulated_update(
          next->name.str(), round, std::get<FetchUpdate>(*next->action).attempt, round > kRounds);
    if (options_.distort) event = options_.distort(std::move(event));
    take(*next, round, event);
    if (std::holds_alternative<Fetched>(event)) wake(slots, round);
    return true;
  }

  // A user takes a facility out of the run, or lets it join again. One member stays.
  void people_change_members(std::vector<Slot>& slots, int round) {
    if (!dies(options_.leave)) return;
    const FacilityName& name = names_[random_() % names_.size()];
    if (run_state_.left.contains(name))
      return append({.facility = name}, history::FacilityJoined{});
    const bool now = random_() % 2 == 0;
    const history::RoundState& state = run_state_.rounds.at(round);
    const bool other_member = std::any_of(
        names_.begin(), names_.end(),
        [&](const FacilityName& each) { return each != name && !run_state_.left.contains(each); });
    const bool other_now = std::any_of(
        state.members.begin(), state.members.end(),
        [&](const FacilityName& each) { return each != name && !state.departed.contains(each); });
    if (!other_member || (now && !other_now)) return;
    ++result_.departures;
    if (now) departed_at_ = now_;
    append({.facility = name}, history::FacilityLeft{.reason = "its budget is spent", .now = now});
    wake(slots, round);
    for (Slot& slot : slots)
      if (now && slot.name == name && slot.action && std::holds_alternative<Sleep>(*slot.action))
        slot.at = now_;
  }

  // An update may bring the end of the round nearer: the driver ends its pauses then.
  void wake(std::vector<Slot>& slots, int round) {
    for (Slot& slot : slots) {
      if (!slot.action || !std::holds_alternative<Sleep>(*slot.action)) continue;
      const auto limit = deadline(policy_, view(slot, round));
      if (limit && limit->ends_attempts)
        slot.at = std::max(now_, std::min(slot.at, now_ + limit->left));
    }
  }

  // Somebody resumes a paused facility some hours later.
  void people_look() {
    if (run_state_.paused.empty()) return;
    if (!look_at_) look_at_ = now_ + hours(1 + random_() % 20);
    if (now_ < *look_at_) return;
    look_at_.reset();
    ++result_.resumes;
    const FacilityName name = run_state_.paused.begin()->first;
    if (spending_.is_paused(name)) return raise_budgets();
    append({.facility = name}, history::FacilityResumed{});
  }

  void publish(int round) {
    std::vector<FacilityName> names;
    for (const auto& [name, facility] : run_state_.rounds.at(round).facilities)
      if (facility.accepted) names.push_back(name);
    const bool enough = static_cast<int>(names.size()) >= quorum(round);
    result_.without_late += enough && static_cast<int>(names.size()) < members_now(round);
    if (!enough) {  // `xffl run` ends with an error; a user repairs the cause and runs it again
      now_ += hours(random_() % 30);
      return restart(true);
    }
    if (run_state_.rounds.at(round).participants.empty())
      append({.round = round},
             history::ParticipantsFrozen{.facilities = names, .updates = {}, .weights = {}});
    append({.round = round}, history::Aggregated{.model_sha256 = std::string(64, 'b'),
                                                 .master_sha256 = std::string(64, 'c')});
    append({.round = round}, history::Published{});
  }

  // --- The oracle ---

  void judge() {
    for (size_t i = 0; i < simulated_.size(); ++i) {
      if (result_.violation.empty() && !simulated_[i]->violations().empty())
        result_.violation = names_[i].str() + ": " + simulated_[i]->violations().front();
      for (int round = 1; round <= kRounds; ++round)
        result_.extra_trainings += std::max(0, simulated_[i]->trainings(round) - 1);
      result_.taken += simulated_[i]->taken();
      result_.not_unpacked += simulated_[i]->not_unpacked();
    }
    judge_the_failures();
    std::map<std::pair<int, std::string>, int> accepted;
    for (const history::StoredEvent& event : events_)
      if (event.kind == history::kind_of(history::UpdateAccepted{}) &&
          ++accepted[{event.round, event.facility}] > 1)
        result_.violation = "two updates of " + event.facility + " accepted in one round";
    if (!result_.violation.empty()) return;
    try {
      judge_the_end(history::replay(events_));
    } catch (const Error& error) {
      result_.violation = error.what();
    }
  }

  // Restarts of the coordinator start no more trainings than the policy allows.
  void judge_the_budget(const Slot& slot, int round) {
    const history::FacilityState& known = run_state_.rounds.at(round).facilities.at(slot.name);
    int failed = 0;
    for (const history::Attempt& attempt : known.attempts)
      failed += attempt.number > known.attempts_before_renewal && attempt.counts_as_attempt &&
                attempt.steps == 0;
    if (failed >= policy_.max_attempts)
      result_.violation = slot.name.str() + " gets an attempt beyond policy.max_attempts";
  }
  // A facility trains only in rounds that have it as a member.
  void judge_the_members(const history::RunState& run_state) {
    for (const auto& [number, round] : run_state.rounds)
      for (size_t i = 0; i < names_.size(); ++i)
        if (!round.members.contains(names_[i]) && simulated_[i]->trainings(number) > 0)
          result_.violation = names_[i].str() + " trained in a round without being its member";
  }

  // A reported training is not repeated, and a job that a user cancelled pauses the facility.
  void judge_the_failure(const Slot& slot, int round, int attempt,
                         const history::AttemptFailed& failed) {
    const std::string& reason = failed.reason;
    const auto says = [&](const char* words) { return reason.find(words) != std::string::npos; };
    const bool unreported = says("ended without a report") || says("and there is no report");
    if (says("it left the run") || says("no update before") || says("not reachable for"))
      return;  // time has ended it
    if (unreported && slot.services->shows_report(round, attempt))
      result_.violation = slot.name.str() + "'s finished training is thrown away: " + reason;
    if (!says("was cancelled by a user or an administrator")) return;
    if (!run_state_.paused.contains(slot.name))
      result_.violation = slot.name.str() + " may get another job before it is paused";
    const history::FacilityState& known = run_state_.rounds.at(round).facilities.at(slot.name);
    if (slot.services->was_told_to_end(JobId(known.current()->job_id)))
      result_.violation = slot.name.str() + "'s job was cancelled by nobody else: " + reason;
  }

  // A damaged model is no failed training, and costs one attempt of a round.
  void judge_the_failures() {
    std::map<std::pair<int, std::string>, int> damaged;
    for (const history::StoredEvent& stored : events_) {
      if (stored.kind != history::kind_of(history::AttemptFailed{})) continue;
      const auto failed = std::get<history::AttemptFailed>(decode(stored).event);
      if (failed.reason.find("found its input model damaged") == std::string::npos) continue;
      if (failed.counts_as_attempt.value_or(true))
        result_.violation = stored.facility + "'s training counts its model's damage as a failure";
      if (++damaged[{stored.round, stored.facility}] > 1)
        result_.violation = stored.facility + " was given a damaged model twice in a round";
    }
  }

  // Every round is published, and every facility with validation sets has evaluated or is missing.
  void judge_the_end(const history::RunState& run_state) {
    judge_the_members(run_state);
    if (run_state.done().rounds_published != kRounds || !run_state.completed)
      result_.violation = "the replayed journal has not published every round";
    for (size_t i = 0; i < simulated_.size(); ++i) {
      const int evaluations = simulated_[i]->trainings(kRounds + 1);
      const auto last = run_state.rounds.find(kRounds + 1);
      const bool is_asked =
          last != run_state.rounds.end() && last->second.members.contains(names_[i]);
      if (!is_asked) {
        if (measures_[i] && !run_state.left.contains(names_[i]) && options_.leave == 0)
          result_.violation = names_[i].str() + " was not asked to measure";
        if (evaluations > 0) result_.violation = names_[i].str() + " measured without being asked";
        continue;
      }
      ++result_.evaluations_asked;
      const history::FacilityState& state =
          run_state.rounds.at(kRounds + 1).facilities.at(names_[i]);
      if (!state.accepted && !state.missing && !last->second.departed.contains(names_[i]))
        result_.violation = "the run ended before " + names_[i].str() + " had measured";
      if (state.accepted && evaluations == 0)
        result_.violation = names_[i].str() + " has an evaluation that no job has made";
      result_.evaluations += state.accepted.has_value();
      result_.extra_trainings += std::max(0, evaluations - 1);
    }
  }

  SimulationOptions options_;
  Random random_;
  FacilityPolicy policy_;
  std::vector<FacilityName> names_;
  std::vector<std::unique_ptr<SimulatedFacility>> simulated_;
  std::vector<bool> measures_;  // by facility: takes part in the evaluation
  std::vector<history::StoredEvent> events_;
  history::RunState run_state_;
  history::Spending spending_;
  config::Experiment experiment_;        // with budgets
  hours walltime_{48};                   // longer than three trainings and their waits
  std::vector<double> spent_in_excess_;  // by facility: node-seconds that users granted
  Nanoseconds departed_at_{0};           // the last departure at once
  Nanoseconds now_{seconds(1'767'225'600)}, began_{0};  // the coordinator, in this round
  std::optional<Nanoseconds> look_at_;
  int steps_ = 0;
  int rounds_begun_ = 0;
  SimulationResult result_;
};

}  // namespace

history::UpdateAccepted simulated_update(const std::string& facility, int round, int attempt,
                                         bool evaluates) {
  job::JobReport report;
  report.key = {"p", "0001", round, facility, attempt, std::string(32, '0')};
  report.base_model_sha256 = std::string(64, 'a');
  if (!evaluates) {
    report.update_sha256 = report.base_model_sha256;
    report.steps = report.samples = report.tokens = 1;
  }
  report.tokens_per_second = report.train_seconds = report.total_seconds = 1;
  report.trainer = "simulated";
  return {.update_sha256 = report.update_sha256, .report = report};
}

SimulationResult simulate(uint64_t seed, const SimulationOptions& options) {
  return Federation(seed, options).run();
}

}  // namespace xffl::test
