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
#include <string>

#include "random_walk.h"
#include "simulation.h"
#include "xffl/facility/machine.h"

namespace xffl::test {
namespace {

using namespace facility;
template <class... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};

// --- As text that does not depend on the machine's names ---

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

void record(const std::string& kind, uint64_t seed, Recorder& recorder) {
  if (kind == "walk")
    return walk(seed, [&](const Phase&, const facility::Event& event, const Step& step) {
      recorder.note(event, step);
    });
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
