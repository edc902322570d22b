#include "xffl/base/json.h"
#include "xffl/base/log.h"
#include "xffl/report/format.h"
#include "xffl/usage/format.h"

namespace xffl::report {
namespace {

Json optional_time(const std::optional<Time>& time) {
  return time ? Json(format_utc(*time)) : Json(nullptr);
}
template <class Number>
Json optional_number(const std::optional<Number>& number) {
  return number ? Json(*number) : Json(nullptr);
}
double seconds(std::chrono::nanoseconds duration) {
  return std::chrono::duration<double>(duration).count();
}

Json attempt_json(const AttemptStory& attempt) {
  Json json = {{"round", attempt.round},
               {"facility", attempt.facility.str()},
               {"attempt", attempt.number},
               {"outcome", name_of(attempt.outcome)},
               {"job", attempt.job_id},
               {"opened_at", optional_time(attempt.opened)},
               {"pushed_at", optional_time(attempt.pushed)},
               {"submitted_at", optional_time(attempt.submitted)},
               {"ended_at", optional_time(attempt.ended)},
               {"moved_bytes", attempt.moved_bytes},
               {"push_seconds", optional_number(attempt.push_seconds)},
               {"change", optional_number(attempt.change)},
               {"cosine", optional_number(attempt.cosine)},
               {"reason", log::printable(attempt.reason)}};
  json["seconds"] = Json::object();
  for (const Span& span : attempt.spans) {
    Json& sum = json["seconds"][std::string(name_of(span.phase))];
    sum = (sum.is_null() ? 0.0 : sum.get<double>()) + seconds(span.end - span.begin);
  }
  json["report"] = nullptr;
  if (attempt.report)
    json["report"] = parse_json(job::format_job_report(*attempt.report), "report");
  return json;
}

Json round_json(const RoundStory& round) {
  Json json = {{"round", round.number},
               {"evaluation", round.evaluates},
               {"planned_at", optional_time(round.planned)},
               {"frozen_at", optional_time(round.frozen)},
               {"published_at", optional_time(round.published)},
               {"last", round.last ? Json(round.last->str()) : Json(nullptr)},
               {"model_sha256", round.model_sha256},
               {"master_sha256", round.master_sha256}};
  json["participants"] = Json::array();
  for (const history::Participant& one : round.participants)
    json["participants"].push_back(
        {{"facility", one.facility.str()}, {"weight", optional_number(one.weight)}});
  json["missing"] = Json::object();
  for (const auto& [name, reason] : round.missing)
    json["missing"][name.str()] = log::printable(reason);
  return json;
}

std::vector<std::string> printable(const std::vector<std::string>& texts) {
  std::vector<std::string> all;
  for (const std::string& text : texts) all.push_back(log::printable(text));
  return all;
}

}  // namespace

std::string format_json(const RunStory& story) {
  Json json;
  json["schema"] = 1;
  json["run"] = story.run;
  json["project"] = story.project;
  json["state"] = story.state;
  json["coordinator"] = story.coordinator;
  json["written_at"] = format_utc(story.written);
  json["first_event_at"] = format_utc(story.first_event);
  json["last_event_at"] = format_utc(story.last_event);
  json["events"] = story.num_events;
  json["rounds_planned"] = story.rounds_planned;
  json["rounds_published"] = story.rounds_published;
  json["stop_rule"] = nullptr;
  if (story.stop_rule)
    json["stop_rule"] = {{"rule", story.stop_rule->rule}, {"reason", story.stop_rule->reason}};
  json["elapsed_seconds"] = seconds(story.elapsed());
  json["config_sha256"] = story.config_sha256;
  json["model_sha256"] = story.model_sha256;
  json["facilities"] = Json::array();
  for (const FacilityName& name : story.facilities) json["facilities"].push_back(name.str());
  json["needs"] = Json::array();
  for (const Need& need : story.needs)
    json["needs"].push_back(
        {{"text", log::printable(need.text)}, {"command", log::printable(need.command)}});
  json["coordinators"] = Json::array();
  for (const CoordinatorStory& one : story.coordinators)
    json["coordinators"].push_back({{"began_at", format_utc(one.began)},
                                    {"ended_at", optional_time(one.ended)},
                                    {"end", log::printable(one.end)}});
  json["validation"] = status::losses_json(story.losses);
  json["rounds"] = Json::array();
  for (const auto& [number, round] : story.rounds) json["rounds"].push_back(round_json(round));
  json["attempts"] = Json::array();
  for (const AttemptStory& attempt : story.attempts)
    json["attempts"].push_back(attempt_json(attempt));
  json["incidents"] = Json::array();
  for (const Incident& one : story.incidents)
    json["incidents"].push_back(
        {{"at", format_utc(one.time)},
         {"round", one.round},
         {"facility", one.facility ? Json(one.facility->str()) : Json(nullptr)},
         {"attempt", one.attempt},
         {"job", one.job_id},
         {"kind", one.kind},
         {"reason", log::printable(one.reason)},
         {"lost_node_seconds",
          one.lost && one.lost->unknown == 0 ? Json(one.lost->seconds) : Json(nullptr)},
         {"followed", one.followed}});
  json["usage"] = usage::to_json(story.ledger);
  json["clock_anomalies"] = story.clock_anomalies;
  json["verified_round"] =
      story.verified_round() < 0 ? Json(nullptr) : Json(story.verified_round());
  json["checks"] = Json::array();
  for (const history::KeptCheck& check : story.checks)
    json["checks"].push_back({{"check", log::printable(check.name)},
                              {"result", check.result},
                              {"checked_at", log::printable(check.checked_at)},
                              {"events", check.events},
                              {"passed", check.passed},
                              {"failed", check.failed},
                              {"failures", printable(check.failures)},
                              {"not_checked", printable(check.not_checked)}});
  json["notes"] = printable(story.notes);
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace xffl::report
