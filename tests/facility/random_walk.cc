#include "random_walk.h"

#include <random>

#include "simulation.h"

namespace xffl::test {
namespace {

using namespace facility;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

template <class... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};

class Walk {
 public:
  explicit Walk(uint64_t seed) : random_(seed), budget_random_(seed), has_budget_(seed % 10 == 0) {
    policy_.evaluates = seed % 20 == 0;
    policy_.seed = "s";
    policy_.max_attempts = 1 + pick(3);
    policy_.rerun_budget = pick(4);
    policy_.poll_interval = seconds(1 + pick(100));
    policy_.settle_time = milliseconds(pick(30'000));
    policy_.on_missing = chance(0.5) ? config::OnMissing::kWait : config::OnMissing::kSkip;
    if (chance(0.8)) policy_.deadline = minutes(1 + pick(600));
    policy_.max_outage = minutes(1 + pick(600));
    if (chance(0.3)) policy_.expected_training = seconds(pick(10'000));
    trouble_ = pick(60) / 100.0;
    pause_ = chance(0.3) ? 0.05 : 0.0;
    longest_ = seconds(1 + pick(chance(0.3) ? 20'000 : 100));
  }

  void run(const OnStep& on_step) {
    FacilityMachine machine;
    facility::Event event = Resumed{};
    for (int i = 0; i < 300; ++i) {
      if (now_.since_first_submission || chance(0.01))
        now_.since_first_submission = now_.time - began_;
      else
        began_ = now_.time;
      if (chance(pause_)) now_.paused = now_.paused ? std::nullopt : std::optional("a user");
      if (has_budget_ && budget_random_() % 20 == 0)
        now_.over_budget = now_.over_budget ? std::nullopt : std::optional("spent");
      const Phase before = machine.phase;
      Step next = step(policy_, std::move(machine), event, now_);
      on_step(before, event, next);
      for (const Record& record : next.records) {
        if (std::holds_alternative<history::Submitted>(record.event) &&
            !now_.since_first_submission)
          now_.since_first_submission = Nanoseconds(0);
        if (const auto* paused = std::get_if<history::FacilityPaused>(&record.event)) {
          now_.paused = "cancelled";
          now_.paused_by_budget = paused->by_budget;
        }
        if (std::holds_alternative<history::FacilityResumed>(record.event)) now_.paused.reset();
      }
      machine = std::move(next.machine);
      if (std::holds_alternative<Finish>(next.action)) {
        if (machine.known.accepted || !chance(0.5)) return;
        resume(machine);
        if (chance(0.5)) began_ = now_.time;
        event = Resumed{};
      } else if (chance(0.01)) {
        machine = FacilityMachine{std::move(machine.known), {}};
        pass(longest_);
        event = Resumed{};
      } else {
        event = answer(next.action);
      }
    }
  }

 private:
  int pick(int count) { return static_cast<int>(random_() % static_cast<uint64_t>(count)); }
  bool chance(double probability) { return pick(1'000'000) < probability * 1e6; }
  void pass(Nanoseconds most) {
    now_.time +=
        Nanoseconds(static_cast<int64_t>(random_() % (static_cast<uint64_t>(most.count()) + 1)));
  }
  JobId job() { return JobId(std::to_string(1 + pick(4))); }

  // `xffl run` again after the facility was given up.
  static void resume(FacilityMachine& machine) {
    machine = FacilityMachine{std::move(machine.known), {}};
    machine.known.missing.reset();
    const history::Attempt* current = machine.known.current();
    if (current != nullptr)
      machine.known.attempts_before_renewal =
          current->failure ? current->number : current->number - 1;
  }

  facility::Event answer(const Action& action) {
    if (const auto* sleep = std::get_if<Sleep>(&action)) {
      now_.time += sleep->duration;
      if (chance(0.1)) pass(longest_);
      return TimerFired{};
    }
    pass(longest_);
    if (chance(trouble_)) {
      if (chance(0.3)) return AuthRequired{"expired"};
      if (!std::holds_alternative<Submit>(action) || chance(0.1))
        return Unreachable{"down", chance(0.3) ? 100u : 0u};
      return SubmitUnknown{"timed out"};
    }
    return std::visit(Overloaded{
                          [](const Push&) -> facility::Event {
                            return Pushed{{.moved_bytes = 1, .seconds = {}, .whole_bytes = 0}};
                          },
                          [&](const Submit&) -> facility::Event {
                            if (chance(0.1)) return SubmitRejected{"Invalid account"};
                            if (chance(0.1)) return SubmitDeferred{"QOSMaxSubmit"};
                            return Submitted{job()};
                          },
                          [&](const FindJobs&) -> facility::Event {
                            Found found;
                            for (int i = pick(4); i > 1; --i) found.jobs.push_back(job());
                            return found;
                          },
                          [&](const Poll& look) -> facility::Event { return polled(look); },
                          [&](const FetchUpdate& fetch) -> facility::Event {
                            if (chance(0.2)) return UpdateRejected{"NaN"};
                            if (chance(0.5)) return Checkpointed{pick(20)};
                            Fetched fetched;
                            fetched.details = simulated_update("f", 1, fetch.attempt);
                            return fetched;
                          },
                          [](const auto&) -> facility::Event { return Completed{}; },
                      },
                      action);
  }

  Polled polled(const Poll& look) {
    Polled polled{.reported = chance(0.1), .status = {}};
    if (polled.reported || !look.ask_scheduler) return polled;
    submit::JobStatus status;
    status.state = static_cast<submit::JobState>(pick(6));
    if (chance(0.3)) status.state = last_state_;
    last_state_ = status.state;
    status.cause = static_cast<submit::EndCause>(pick(4));
    if (chance(0.5)) status.native = "WORD";
    if (chance(0.3)) status.reason = "Priority";
    if (status.state == submit::JobState::kEnded && chance(0.1)) polled.model_error = "damaged";
    polled.status = status;
    return polled;
  }

  std::mt19937_64 random_, budget_random_;  // budgets leave the other choices as they are
  bool has_budget_;
  FacilityPolicy policy_;
  Now now_;
  Nanoseconds began_{0};
  Nanoseconds longest_{0};
  double trouble_ = 0, pause_ = 0;
  submit::JobState last_state_ = submit::JobState::kPending;
};

}  // namespace

void walk(uint64_t seed, const OnStep& on_step) { Walk(seed).run(on_step); }

}  // namespace xffl::test
