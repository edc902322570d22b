#include "xffl/round/history.h"

#include "xffl/base/error.h"
#include "xffl/base/json.h"

namespace xffl::round {
namespace {

using Apply = void (*)(History&, const journal::Event&, JsonObject&);

FacilityState& facility_of(History& history, const journal::Event& event) {
  return history.rounds[event.round].facilities[FacilityName(event.facility)];
}

Attempt& attempt_of(History& history, const journal::Event& event) {
  FacilityState& state = facility_of(history, event);
  if (state.attempts.empty() || state.attempts.back().number != event.attempt)
    throw Error(ErrorKind::kCorrupt, "event " + std::to_string(event.seq) + " (" + event.kind +
                                         ") names attempt " + std::to_string(event.attempt) +
                                         " of " + event.facility + ", which is not the open one");
  return state.attempts.back();
}

void run_created(History& history, const journal::Event&, JsonObject& payload) {
  history.identity = plan::RunIdentity{RunName(payload.string("run")), payload.string("secret")};
  history.project = payload.string("project");
  history.config_sha256 = payload.string("config_sha256");
}

void model_imported(History& history, const journal::Event&, JsonObject& payload) {
  history.initial_sha256 = payload.string("model_sha256");
  history.initial_master_sha256 = payload.string("master_sha256");
}

// A person ran again: facilities that were given up in an unfinished round get a new budget of
// attempts.
void run_resumed(History& history, const journal::Event&, JsonObject&) {
  for (auto& [number, round] : history.rounds) {
    if (round.published || !round.participants.empty()) continue;
    for (auto& [name, facility] : round.facilities) {
      facility.missing.reset();
      const Attempt* current = facility.current();
      if (current != nullptr)
        facility.attempts_before_resume = current->failure ? current->number : current->number - 1;
    }
  }
}

void round_planned(History& history, const journal::Event& event, JsonObject& payload) {
  RoundState& round = history.rounds[event.round];
  round.planned = true;
  for (const std::string& name : payload.strings("facilities"))
    round.facilities[FacilityName(name)];
}

void attempt_opened(History& history, const journal::Event& event, JsonObject&) {
  facility_of(history, event).attempts.push_back(Attempt{.number = event.attempt});
}

void pushed(History& history, const journal::Event& event, JsonObject&) {
  attempt_of(history, event).pushed = true;
}

void submit_intended(History& history, const journal::Event& event, JsonObject&) {
  attempt_of(history, event).submit_intended = true;
}

void submitted(History& history, const journal::Event& event, JsonObject& payload) {
  attempt_of(history, event).job_id = payload.string("job_id");
  std::string& first = history.rounds[event.round].first_submission_utc;
  if (first.empty()) first = event.time_utc;
}

void attempt_failed(History& history, const journal::Event& event, JsonObject& payload) {
  attempt_of(history, event).failure = payload.string("reason");
}

void update_accepted(History& history, const journal::Event& event, JsonObject& payload) {
  Accepted accepted;
  accepted.facility = FacilityName(event.facility);
  accepted.attempt = event.attempt;
  accepted.update_sha256 = payload.string("update_sha256");
  accepted.report = job::parse_job_report(payload.at("report").dump(), "journal");
  facility_of(history, event).accepted = std::move(accepted);
}

void facility_missing(History& history, const journal::Event& event, JsonObject& payload) {
  facility_of(history, event).missing = payload.string("reason");
}

void participants_frozen(History& history, const journal::Event& event, JsonObject& payload) {
  history.rounds[event.round].participants = payload.strings("facilities");
}

void aggregated(History& history, const journal::Event& event, JsonObject& payload) {
  history.rounds[event.round].model_sha256 = payload.string("model_sha256");
  history.rounds[event.round].master_sha256 = payload.string("master_sha256");
}

void published(History& history, const journal::Event& event, JsonObject&) {
  history.rounds[event.round].published = true;
}

void run_completed(History& history, const journal::Event&, JsonObject&) {
  history.completed = true;
}

void run_cancelled(History& history, const journal::Event&, JsonObject&) {
  history.cancelled = true;
}

const std::map<std::string_view, Apply>& vocabulary() {
  static const std::map<std::string_view, Apply> kKinds = {
      {"run_created", run_created},
      {"model_imported", model_imported},
      {"run_resumed", run_resumed},
      {"round_planned", round_planned},
      {"attempt_opened", attempt_opened},
      {"pushed", pushed},
      {"submit_intended", submit_intended},
      {"submitted", submitted},
      {"attempt_failed", attempt_failed},
      {"update_accepted", update_accepted},
      {"facility_missing", facility_missing},
      {"participants_frozen", participants_frozen},
      {"aggregated", aggregated},
      {"published", published},
      {"run_completed", run_completed},
      {"run_cancelled", run_cancelled},
  };
  return kKinds;
}

}  // namespace

plan::Done History::done() const {
  plan::Done done{0, initial_sha256};
  for (const auto& [number, round] : rounds)
    if (round.published) done = {number, round.model_sha256};
  return done;
}

void apply(History& history, const journal::Event& event) {
  const auto it = vocabulary().find(event.kind);
  if (it == vocabulary().end())
    throw Error(ErrorKind::kCorrupt, "event " + std::to_string(event.seq) +
                                         " has the unknown kind '" + event.kind +
                                         "': was the journal written by a newer xffl?");
  const std::string where = "journal event " + std::to_string(event.seq) + " (" + event.kind + ")";
  const Json json = parse_json(event.payload.empty() ? "{}" : event.payload, where);
  JsonObject payload(json, where);
  it->second(history, event, payload);
}

History replay(const std::vector<journal::Event>& events) {
  History history;
  for (const journal::Event& event : events) apply(history, event);
  return history;
}

}  // namespace xffl::round
