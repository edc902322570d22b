#include "xffl/history/run_state.h"

#include "xffl/base/error.h"
#include "xffl/base/json.h"

namespace xffl::history {
namespace {

using Apply = void (*)(RunState&, const StoredEvent&, JsonObject&);
using ApplyToFacility = void (*)(FacilityState&, int attempt, JsonObject&);

Attempt& open_attempt(FacilityState& facility, int attempt, const JsonObject& payload) {
  if (facility.attempts.empty() || facility.attempts.back().number != attempt)
    throw Error(ErrorKind::kCorrupt, payload.where() + " names attempt " + std::to_string(attempt) +
                                         ", which is not the open one");
  return facility.attempts.back();
}

[[noreturn]] void refuse(const JsonObject& payload, const std::string& why) {
  throw Error(ErrorKind::kCorrupt, payload.where() + " cannot have happened: " + why);
}

Attempt& living_attempt(FacilityState& facility, int attempt, const JsonObject& payload) {
  Attempt& open = open_attempt(facility, attempt, payload);
  if (open.failure || facility.accepted) refuse(payload, "the attempt was over");
  return open;
}

void run_created(RunState& run_state, const StoredEvent&, JsonObject& payload) {
  if (run_state.identity) refuse(payload, "the run had been created");
  run_state.identity = plan::RunIdentity{RunName(payload.string("run")), payload.string("secret")};
  run_state.project = payload.string("project");
  run_state.config_sha256 = payload.string("config_sha256");
}

void run_placed(RunState& run_state, const StoredEvent&, JsonObject& payload) {
  run_state.place =
      RunLocation{payload.string("host"), payload.string("folder"), payload.integer("device"),
                  payload.integer("inode"), payload.integer("born_ns")};
}

void model_imported(RunState& run_state, const StoredEvent&, JsonObject& payload) {
  run_state.initial_sha256 = payload.string("model_sha256");
  run_state.initial_master_sha256 = payload.string("master_sha256");
  run_state.adapted_sha256 = payload.string_or("adapted_sha256", "");
}

// A person ran again: facilities that were given up in an unfinished round get a new budget of
// attempts, and the round a new deadline, which runs from now on.
void run_resumed(RunState& run_state, const StoredEvent& event, JsonObject&) {
  run_state.stopped.reset();
  for (auto& [number, round] : run_state.rounds) {
    if (round.published || !round.participants.empty()) continue;
    for (auto& [name, facility] : round.facilities) {
      if (facility.missing && !round.first_submission_utc.empty())
        round.first_submission_utc = event.time_utc;
      facility.missing.reset();
      const Attempt* current = facility.current();
      if (current != nullptr)
        facility.attempts_before_resume = current->failure ? current->number : current->number - 1;
    }
  }
}

void run_stopped(RunState& run_state, const StoredEvent& event, JsonObject& payload) {
  run_state.stopped = Stopped{event.time_utc, payload.string("kind"), payload.string("reason")};
}

void round_planned(RunState& run_state, const StoredEvent& event, JsonObject& payload) {
  RoundState& round = run_state.rounds[event.round];
  round.planned = true;
  round.evaluates = payload.boolean_or("evaluates", false);
  for (const std::string& name : payload.strings("facilities"))
    round.facilities[FacilityName(name)];
}

void attempt_opened(FacilityState& facility, int attempt, JsonObject& payload) {
  const Attempt* last = facility.current();
  if (facility.accepted || (last != nullptr && !last->failure))
    refuse(payload, "another attempt was open");
  if (attempt != (last == nullptr ? 1 : last->number + 1))
    refuse(payload, "attempt " + std::to_string(attempt) + " was not the next");
  facility.attempts.push_back(Attempt{.number = attempt});
}

void pushed(FacilityState& facility, int attempt, JsonObject& payload) {
  Attempt& open = open_attempt(facility, attempt, payload);
  open.pushed = true;
  open.packed = payload.integer_or("whole_bytes", 0) > 0;
  open.moved_bytes = payload.integer_or("moved_bytes", 0);
  open.push_seconds = payload.number_or("seconds", 0);
}

void submit_intended(FacilityState& facility, int attempt, JsonObject& payload) {
  open_attempt(facility, attempt, payload).submit_intended = true;
}

void submitted(FacilityState& facility, int attempt, JsonObject& payload) {
  Attempt& open = living_attempt(facility, attempt, payload);
  if (!open.submit_intended) refuse(payload, "no submission was intended");
  open.job_id = payload.string("job_id");
  if (payload.has("twins")) open.twins = payload.strings("twins");
}

void attempt_failed(FacilityState& facility, int attempt, JsonObject& payload) {
  Attempt& failed = open_attempt(facility, attempt, payload);
  failed.failure = payload.string("reason");
  failed.charged = payload.boolean_or("charged", true);
  failed.steps = payload.integer_or("steps", 0);
}

void cancel_intended(FacilityState& facility, int attempt, JsonObject& payload) {
  open_attempt(facility, attempt, payload).cancel_intended = true;
}

void cancel_confirmed(FacilityState& facility, int attempt, JsonObject& payload) {
  open_attempt(facility, attempt, payload).cancel_intended = false;
}

void update_accepted(FacilityState& facility, int attempt, JsonObject& payload) {
  living_attempt(facility, attempt, payload);
  Accepted accepted;
  accepted.attempt = attempt;
  accepted.update_sha256 = payload.string("update_sha256");
  accepted.report = job::parse_job_report(payload.at("report").dump(), "journal");
  accepted.facility = FacilityName(accepted.report.key.facility);
  facility.accepted = std::move(accepted);
}

// Its files were damaged here, and the facility does not have it any more. The set of a mean that
// was not made yet is open again.
void update_lost(RunState& run_state, const StoredEvent& event, JsonObject& payload) {
  RoundState& round = run_state.rounds[event.round];
  FacilityState& facility = round.facilities[FacilityName(event.facility)];
  if (!facility.accepted || facility.accepted->attempt != event.attempt || round.published)
    refuse(payload, "the update was not accepted, or its round is over");
  facility.accepted.reset();
  facility.attempts.back().failure = payload.string("reason");
  facility.attempts.back().charged = false;
  round.participants.clear();
}

void facility_missing(FacilityState& facility, int, JsonObject& payload) {
  facility.missing = payload.string("reason");
}

void facility_paused(RunState& run_state, const StoredEvent& event, JsonObject& payload) {
  run_state.paused[FacilityName(event.facility)] = payload.string("reason");
}

void facility_resumed(RunState& run_state, const StoredEvent& event, JsonObject&) {
  run_state.paused.erase(FacilityName(event.facility));
}

void config_changed(RunState& run_state, const StoredEvent&, JsonObject& payload) {
  run_state.config_sha256 = payload.string("config_sha256");
}

void participants_frozen(RunState& run_state, const StoredEvent& event, JsonObject& payload) {
  run_state.rounds[event.round].participants = payload.strings("facilities");
}

void aggregated(RunState& run_state, const StoredEvent& event, JsonObject& payload) {
  run_state.rounds[event.round].model_sha256 = payload.string("model_sha256");
  run_state.rounds[event.round].master_sha256 = payload.string("master_sha256");
}

void published(RunState& run_state, const StoredEvent& event, JsonObject& payload) {
  RoundState& round = run_state.rounds[event.round];
  if (round.model_sha256.empty()) refuse(payload, "the round was not aggregated");
  if (event.round != run_state.done().rounds_published + 1)
    refuse(payload, "round " + std::to_string(event.round) + " was not the next");
  round.published = true;
}

void run_completed(RunState& run_state, const StoredEvent&, JsonObject&) {
  run_state.stopped.reset();
  run_state.completed = true;
}

void run_cancelled(RunState& run_state, const StoredEvent&, JsonObject&) {
  run_state.stopped.reset();
  run_state.cancelled = true;
}

const std::map<std::string_view, ApplyToFacility>& facility_vocabulary() {
  static const std::map<std::string_view, ApplyToFacility> kKinds = {
      {"attempt_opened", attempt_opened},     {"pushed", pushed},
      {"submit_intended", submit_intended},   {"submitted", submitted},
      {"attempt_failed", attempt_failed},     {"cancel_intended", cancel_intended},
      {"cancel_confirmed", cancel_confirmed}, {"update_accepted", update_accepted},
      {"facility_missing", facility_missing},
  };
  return kKinds;
}

const std::map<std::string_view, Apply>& vocabulary() {
  static const std::map<std::string_view, Apply> kKinds = {
      {"run_created", run_created},
      {"run_placed", run_placed},
      {"config_changed", config_changed},
      {"model_imported", model_imported},
      {"run_resumed", run_resumed},
      {"run_stopped", run_stopped},
      {"round_planned", round_planned},
      {"facility_paused", facility_paused},
      {"update_lost", update_lost},
      {"facility_resumed", facility_resumed},
      {"participants_frozen", participants_frozen},
      {"aggregated", aggregated},
      {"published", published},
      {"run_completed", run_completed},
      {"run_cancelled", run_cancelled},
  };
  return kKinds;
}

}  // namespace

plan::Done RunState::done() const {
  plan::Done done{0, initial_sha256, {}, adapted_sha256, false};
  for (const auto& [number, round] : rounds) {
    if (!round.published) continue;
    done = {number, round.model_sha256, {}, adapted_sha256, false};
    for (const auto& [name, facility] : round.facilities)
      if (facility.accepted) done.accepted[name] = facility.accepted->attempt;
  }
  done.run_completed = completed;
  return done;
}

bool apply(FacilityState& facility, std::string_view kind, int attempt, const Json& payload,
           const std::string& where) {
  const auto it = facility_vocabulary().find(kind);
  if (it == facility_vocabulary().end()) return false;
  JsonObject object(payload, where);
  it->second(facility, attempt, object);
  return true;
}

void apply(RunState& run_state, const StoredEvent& event) {
  const std::string where = "journal event " + std::to_string(event.seq) + " (" + event.kind + ")";
  const Json json = parse_json(event.payload.empty() ? "{}" : event.payload, where);
  if (facility_vocabulary().contains(event.kind)) {
    RoundState& round = run_state.rounds[event.round];
    apply(round.facilities[FacilityName(event.facility)], event.kind, event.attempt, json, where);
    if (event.kind == "submitted" && round.first_submission_utc.empty())
      round.first_submission_utc = event.time_utc;
    return;
  }
  const auto it = vocabulary().find(event.kind);
  if (it == vocabulary().end())
    throw Error(ErrorKind::kCorrupt, "event " + std::to_string(event.seq) +
                                         " has the unknown kind '" + event.kind +
                                         "': was the journal written by a newer xffl?");
  JsonObject payload(json, where);
  it->second(run_state, event, payload);
}

RunState replay(const std::vector<StoredEvent>& events) {
  RunState run_state;
  for (const StoredEvent& event : events) apply(run_state, event);
  return run_state;
}

}  // namespace xffl::history
