// Records every decision of a facility's state machine, so that a change of the machine can be
// compared with the machine before it.
//
//   record_decisions federation FIRST LAST    one line per seed: hashes of its decisions
//   record_decisions walk FIRST LAST          the same of random answers to one machine
//   record_decisions federation|walk SEED     the decisions of one seed as text
//
// A line is "SEED DECISIONS STATUS": a hash of all events, records and actions, and one of the
// texts for the status page. A federation is simulation.h's; a walk answers each action with any
// event that may follow, lets any time pass and restarts the machine now and then, so it reaches
// states that no federation is in.
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <random>
#include <string>

#include "simulation.h"
#include "xffl/facility/machine.h"

namespace xffl::test {
namespace {

using namespace facility;
using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

template <class... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};

// --- As text, in words that do not depend on the machine's names ---

std::string text_of(const submit::JobStatus& status) {
  return std::to_string(static_cast<int>(status.state)) + "." +
         std::to_string(static_cast<int>(status.cause)) + "." + status.native;
}

// Without the fields that the driver adds.
std::string payload_of(const history::Event& event) {
  Json payload = parse_json(encode({}, event).payload, "event");
  for (const char* added : {"nonce", "job_name", "script_sha256"}) payload.erase(added);
  return payload.dump();
}

std::string text_of(const facility::Event& event) {
  return std::visit(
      Overloaded{
          [](const Resumed&) -> std::string { return "resumed"; },
          [](const Pushed& e) { return "completed " + payload_of(e.details); },
          [](const Completed&) -> std::string { return "completed {}"; },
          [](const Submitted& e) { return "submitted " + e.job.str(); },
          [](const SubmitRejected& e) { return "submit_rejected " + e.reason; },
          [](const SubmitDeferred& e) { return "submit_deferred " + e.reason; },
          [](const SubmitUnknown& e) { return "submit_unknown " + e.reason; },
          [](const Found& e) {
            std::string text = "found";
            for (const JobId& job : e.jobs) text += " " + job.str();
            return text;
          },
          [](const Polled& e) {
            return std::string("polled ") + (e.reported ? "report " : "") +
                   (e.status ? text_of(*e.status) : "") + " " + e.model_error;
          },
          [](const Fetched&) -> std::string { return "fetched"; },
          [](const UpdateRejected& e) { return "update_rejected " + e.reason; },
          [](const Checkpointed& e) { return "checkpointed " + std::to_string(e.steps); },
          [](const TimerFired&) -> std::string { return "timer"; },
          [](const Unreachable& e) {
            return "unreachable " + std::to_string(e.gained_bytes) + " " + e.reason;
          },
          [](const AuthRequired& e) { return "auth " + e.reason; },
      },
      event);
}

std::string text_of(const Action& action) {
  const auto of = [](const char* name, int attempt) {
    return std::string(name) + " " + std::to_string(attempt);
  };
  return std::visit(
      Overloaded{
          [&](const Push& a) { return of("push", a.attempt); },
          [&](const Submit& a) { return of("submit", a.attempt); },
          [&](const FindJobs& a) { return of("find", a.attempt); },
          [&](const Poll& a) {
            return of("poll", a.attempt) + " " + a.job.str() + (a.ask_scheduler ? " ask" : "");
          },
          [&](const FetchUpdate& a) { return of("fetch", a.attempt); },
          [&](const CancelJob& a) { return of("cancel", a.attempt) + " " + a.job.str(); },
          [&](const Fence& a) { return of("fence", a.attempt); },
          [](const Sleep& a) { return "sleep " + std::to_string(a.duration.count()); },
          [](const Finish&) -> std::string { return "finish"; },
      },
      action);
}

std::string text_of(const Record& record) {
  return std::string(history::kind_of(record.event)) + " " + std::to_string(record.attempt) + " " +
         payload_of(record.event);
}

struct Recorder {
  bool shows = false;
  uint64_t decisions = kOffset, status = kOffset;

  void note(const facility::Event& event, const Step& step) {
    std::string text = text_of(event) + " |";
    for (const Record& record : step.records) text += " " + text_of(record) + " |";
    text += " " + text_of(step.action) + "\n";
    const std::string words = describe(step.machine) + "\n";
    if (shows) std::cout << text << "    " << words;
    add(decisions, text);
    add(status, words);
  }

 private:
  static constexpr uint64_t kOffset = 14695981039346656037u;  // FNV-1a
  static void add(uint64_t& hash, const std::string& text) {
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  }
};

// --- Random answers ---

class Walk {
 public:
  explicit Walk(uint64_t seed) : random_(seed) {
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

  void run(Recorder& recorder) {
    FacilityMachine machine;
    facility::Event event = Resumed{};
    for (int i = 0; i < 300; ++i) {
      if (now_.since_first_submission || chance(0.01))
        now_.since_first_submission = now_.time - began_;
      else
        began_ = now_.time;
      if (chance(pause_)) now_.paused = now_.paused ? std::nullopt : std::optional("a user");
      Step next = step(policy_, std::move(machine), event, now_);
      recorder.note(event, next);
      for (const Record& record : next.records) {
        if (std::holds_alternative<history::Submitted>(record.event) &&
            !now_.since_first_submission)
          now_.since_first_submission = Nanoseconds(0);
        if (std::holds_alternative<history::FacilityPaused>(record.event))
          now_.paused = "cancelled";
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
      machine.known.attempts_before_resume =
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

  std::mt19937_64 random_;
  FacilityPolicy policy_;
  Now now_;
  Nanoseconds began_{0};
  Nanoseconds longest_{0};
  double trouble_ = 0, pause_ = 0;
  submit::JobState last_state_ = submit::JobState::kPending;
};

void record(const std::string& kind, uint64_t seed, Recorder& recorder) {
  if (kind == "walk") return Walk(seed).run(recorder);
  SimulationOptions options;
  options.on_step = [&](const facility::Event& event, const Step& step) {
    recorder.note(event, step);
  };
  simulate(seed, options);
}

int run(int argc, char** argv) {
  if (argc < 3 || argc > 4) {
    std::cerr << "usage: record_decisions federation|walk FIRST [LAST]\n";
    return 2;
  }
  const uint64_t first = std::stoull(argv[2]);
  if (argc == 3) {
    Recorder recorder{.shows = true};
    record(argv[1], first, recorder);
    return 0;
  }
  for (uint64_t seed = first; seed <= std::stoull(argv[3]); ++seed) {
    Recorder recorder;
    record(argv[1], seed, recorder);
    std::printf("%llu %016llx %016llx\n", static_cast<unsigned long long>(seed),
                static_cast<unsigned long long>(recorder.decisions),
                static_cast<unsigned long long>(recorder.status));
  }
  return 0;
}

}  // namespace
}  // namespace xffl::test

int main(int argc, char** argv) { return xffl::test::run(argc, argv); }
