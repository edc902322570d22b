// How it works: the table kKinds lists each kind once, in the order of the variant, with the kind's
// name, its struct, and its fields in their order on disk. encode(), decode() and event_fields()
// use this table.
#include "xffl/history/events.h"

#include <algorithm>
#include <array>
#include <concepts>
#include <filesystem>
#include <tuple>
#include <utility>

#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/base/scrub.h"

namespace xffl::history {
namespace {

// --- The table -------------------------------------------------------------------------------

enum class Rule {
  kRequired,  // always written; absent: kCorrupt
  kWritten,   // always written; absent, as in journals of earlier releases: the default
  kIfSet,     // written unless it is the default
};
template <Rule kRule, class Struct, class Value>
struct Field {
  std::string_view key;
  Value Struct::*member;
};
template <class Struct, class Value>
constexpr Field<Rule::kRequired, Struct, Value> required(std::string_view key,
                                                         Value Struct::*member) {
  return {key, member};
}
template <class Struct, class Value>
constexpr Field<Rule::kWritten, Struct, Value> written(std::string_view key,
                                                       Value Struct::*member) {
  return {key, member};
}
template <class Struct, class Value>
constexpr Field<Rule::kIfSet, Struct, Value> if_set(std::string_view key, Value Struct::*member) {
  return {key, member};
}

template <class E, class... Fields>
struct Kind {
  using EventType = E;
  std::string_view name;
  std::tuple<Fields...> fields;
};
template <class E, class... Fields>
constexpr Kind<E, Fields...> kind(std::string_view name, Fields... fields) {
  return {name, {fields...}};
}

constexpr std::tuple kKinds{
    kind<RunCreated>("run_created", required("run", &RunCreated::run),
                     required("project", &RunCreated::project),
                     required("secret", &RunCreated::secret), if_set("tag", &RunCreated::tag),
                     required("config_sha256", &RunCreated::config_sha256)),
    kind<RunPlaced>("run_placed", required("host", &RunPlaced::host),
                    required("folder", &RunPlaced::folder), required("device", &RunPlaced::device),
                    required("inode", &RunPlaced::inode), required("born_ns", &RunPlaced::born_ns),
                    written("adopted", &RunPlaced::adopted)),
    kind<ConfigChanged>("config_changed", required("config_sha256", &ConfigChanged::config_sha256)),
    kind<ModelImported>("model_imported", required("model_sha256", &ModelImported::model_sha256),
                        required("master_sha256", &ModelImported::master_sha256),
                        if_set("adapted_sha256", &ModelImported::adapted_sha256)),
    kind<RunResumed>("run_resumed", if_set("keeps_budgets", &RunResumed::keeps_budgets)),
    kind<RunStopped>("run_stopped", required("kind", &RunStopped::kind),
                     required("reason", &RunStopped::reason)),
    kind<RunCompleted>("run_completed", written("model_sha256", &RunCompleted::model_sha256)),
    kind<RunCancelled>("run_cancelled"),
    kind<StopRuleMet>("stop_rule_met", required("rule", &StopRuleMet::rule),
                      required("reason", &StopRuleMet::reason)),
    kind<FacilityPaused>("facility_paused", required("reason", &FacilityPaused::reason),
                         if_set("by_budget", &FacilityPaused::by_budget)),
    kind<FacilityResumed>("facility_resumed", if_set("new_budget", &FacilityResumed::new_budget)),
    kind<FacilityLeft>("facility_left", required("reason", &FacilityLeft::reason),
                       if_set("now", &FacilityLeft::now)),
    kind<FacilityJoined>("facility_joined"),
    kind<RoundPlanned>("round_planned", written("base_sha256", &RoundPlanned::base_sha256),
                       written("plan_sha256", &RoundPlanned::plan_sha256),
                       required("facilities", &RoundPlanned::facilities),
                       if_set("evaluates", &RoundPlanned::evaluates)),
    kind<ParticipantsFrozen>("participants_frozen",
                             required("facilities", &ParticipantsFrozen::facilities),
                             written("updates", &ParticipantsFrozen::updates),
                             written("weights", &ParticipantsFrozen::weights)),
    kind<Aggregated>("aggregated", required("model_sha256", &Aggregated::model_sha256),
                     required("master_sha256", &Aggregated::master_sha256),
                     if_set("cosines", &Aggregated::cosines)),
    kind<Published>("published", written("model_sha256", &Published::model_sha256)),
    kind<FacilityMissing>("facility_missing", required("reason", &FacilityMissing::reason)),
    kind<AttemptOpened>("attempt_opened", written("nonce", &AttemptOpened::nonce)),
    kind<Pushed>("pushed", written("moved_bytes", &Pushed::moved_bytes),
                 if_set("seconds", &Pushed::seconds), if_set("whole_bytes", &Pushed::whole_bytes)),
    kind<SubmitIntended>("submit_intended", written("job_name", &SubmitIntended::job_name),
                         written("script_sha256", &SubmitIntended::script_sha256),
                         if_set("nodes", &SubmitIntended::nodes),
                         if_set("walltime_s", &SubmitIntended::walltime_s),
                         if_set("keep_s", &SubmitIntended::keep_s)),
    kind<Submitted>("submitted", required("job_id", &Submitted::job_id),
                    written("adopted", &Submitted::adopted),
                    if_set("twins", &Submitted::duplicates)),
    kind<AttemptFailed>(
        "attempt_failed", required("reason", &AttemptFailed::reason),
        if_set("charged", &AttemptFailed::counts_as_attempt),
        if_set("steps", &AttemptFailed::steps), if_set("output", &AttemptFailed::output),
        if_set("usage", &AttemptFailed::usage), if_set("job_may_run", &AttemptFailed::job_may_run)),
    kind<CancelIntended>("cancel_intended"),
    kind<CancelConfirmed>("cancel_confirmed"),
    kind<UpdateAccepted>(
        "update_accepted", required("update_sha256", &UpdateAccepted::update_sha256),
        required("report", &UpdateAccepted::report), if_set("change", &UpdateAccepted::change),
        if_set("usage", &UpdateAccepted::usage)),
    kind<UpdateLost>("update_lost", required("reason", &UpdateLost::reason)),
};
constexpr size_t kNumKinds = std::tuple_size_v<decltype(kKinds)>;
static_assert(kNumKinds == std::variant_size_v<Event>, "kKinds has one entry per struct of Event");

// --- Values ----------------------------------------------------------------------------------

template <class T>
Json to_json(const T& value) {
  return value;
}
Json to_json(const std::filesystem::path& path) { return path.string(); }
template <class Tag>
Json to_json(const Name<Tag>& name) {
  return name.str();
}
Json to_json(const job::JobUsage& usage) {
  return parse_json(job::format_job_usage(usage), "usage");
}
template <class T>
Json to_json(const std::optional<T>& value) {
  return to_json(*value);
}
template <class T>
Json to_json(const std::vector<T>& values) {
  Json list = Json::array();
  for (const T& value : values) list.push_back(to_json(value));
  return list;
}
Json to_json(const job::JobReport& report) {
  return parse_json(job::format_job_report(report), "report.json");
}

void read(JsonObject& json, std::string_view key, std::string& value) { value = json.string(key); }
void read(JsonObject& json, std::string_view key, bool& value) { value = json.boolean(key); }
void read(JsonObject& json, std::string_view key, int64_t& value) { value = json.integer(key); }
void read(JsonObject& json, std::string_view key, double& value) { value = json.number(key); }
void read(JsonObject& json, std::string_view key, std::filesystem::path& value) {
  value = json.string(key);
}
template <class Tag>
Name<Tag> checked_name(JsonObject& json, std::string_view key, std::string text) {
  try {
    return Name<Tag>(std::move(text));
  } catch (const Error& error) {
    json.fail(key, std::string("is not a valid name: ") + error.what());
  }
}
template <class Tag>
void read(JsonObject& json, std::string_view key, Name<Tag>& value) {
  value = checked_name<Tag>(json, key, json.string(key));
}
template <class T>
void read(JsonObject& json, std::string_view key, std::optional<T>& value) {
  read(json, key, value.emplace());
}
void read(JsonObject& json, std::string_view key, std::vector<std::string>& values) {
  values = json.strings(key);
}
template <class Tag>
void read(JsonObject& json, std::string_view key, std::vector<Name<Tag>>& values) {
  for (std::string& text : json.strings(key))
    values.push_back(checked_name<Tag>(json, key, std::move(text)));
}
void read(JsonObject& json, std::string_view key, std::vector<double>& values) {
  const Json& list = json.at(key);
  if (!list.is_array()) json.fail(key, "should be a list of numbers");
  for (const Json& value : list) {
    if (!value.is_number()) json.fail(key, "should hold numbers only");
    values.push_back(value.get<double>());
  }
}
void read(JsonObject& json, std::string_view key, job::JobReport& value) {
  value = job::parse_job_report(json.at(key).dump(), "journal");
}
void read(JsonObject& json, std::string_view key, std::optional<job::JobUsage>& value) {
  value = job::parse_job_usage(json.at(key).dump(), "journal");
}

// --- Writing and reading -----------------------------------------------------------------------

template <Rule kRule, class Struct, class Value>
void write_field(Json& json, const Field<kRule, Struct, Value>& field, const auto& event) {
  const Value& value = event.*field.member;
  if constexpr (kRule == Rule::kIfSet)
    if (value == Value()) return;
  json[std::string(field.key)] = to_json(value);
}

template <Rule kRule, class Struct, class Value>
void read_field(JsonObject& json, const Field<kRule, Struct, Value>& field, auto& event) {
  if (kRule == Rule::kRequired || json.has(field.key)) read(json, field.key, event.*field.member);
}

// The table's entry of a kind, with the struct's type erased.
struct Entry {
  std::string_view name;
  Json (*write)(const Event& event);
  Event (*read)(JsonObject& payload);
  std::vector<std::string_view> (*fields)();
};

template <size_t kIndex>
constexpr Entry entry() {
  using E = typename std::tuple_element_t<kIndex, decltype(kKinds)>::EventType;
  static_assert(std::same_as<E, std::variant_alternative_t<kIndex, Event>>,
                "kKinds has the order of Event");
  constexpr const auto& kFields = std::get<kIndex>(kKinds).fields;
  return {
      .name = std::get<kIndex>(kKinds).name,
      .write =
          [](const Event& event) {
            Json json = Json::object();
            std::apply(
                [&](const auto&... field) {
                  (write_field(json, field, std::get<kIndex>(event)), ...);
                },
                kFields);
            return json;
          },
      .read =
          [](JsonObject& payload) {
            E event;
            std::apply([&](const auto&... field) { (read_field(payload, field, event), ...); },
                       kFields);
            return Event(std::move(event));
          },
      .fields =
          [] {
            return std::apply(
                [](const auto&... field) { return std::vector<std::string_view>{field.key...}; },
                kFields);
          }};
}

constexpr auto kEntries = []<size_t... kIndex>(std::index_sequence<kIndex...>) {
  return std::array{entry<kIndex>()...};
}
(std::make_index_sequence<kNumKinds>());

}  // namespace

std::string_view kind_of(const Event& event) { return kEntries[event.index()].name; }

StoredEvent encode(const EventScope& scope, const Event& event) {
  const Entry& kind = kEntries[event.index()];
  Json payload = kind.write(event);
  // Texts of facilities, schedulers and users.
  for (const char* text : {"reason", "output"})
    if (payload.contains(text))
      payload[text] = scrubbed(payload[text].get_ref<const std::string&>());
  return {.seq = 0,
          .time_utc = {},
          .kind = std::string(kind.name),
          .round = scope.round,
          .facility = scope.facility ? scope.facility->str() : "",
          .attempt = scope.attempt,
          .payload = payload.dump(-1, ' ', false, Json::error_handler_t::replace)};
}

RecordedEvent decode(const StoredEvent& stored) {
  const auto kind = std::find_if(kEntries.begin(), kEntries.end(),
                                 [&](const Entry& each) { return each.name == stored.kind; });
  if (kind == kEntries.end())
    throw Error(ErrorKind::kCorrupt, "event " + std::to_string(stored.seq) +
                                         " has the unknown kind '" +
                                         log::printable(stored.kind, 60) +
                                         "': was the journal written by a newer xffl?");
  const std::string where =
      "journal event " + std::to_string(stored.seq) + " (" + stored.kind + ")";
  const Json json = parse_json(stored.payload.empty() ? "{}" : stored.payload, where);
  JsonObject payload(json, where);
  RecordedEvent recorded{
      .seq = stored.seq,
      .time_utc = stored.time_utc,
      .scope = {.round = stored.round, .facility = {}, .attempt = stored.attempt},
      .event = kind->read(payload)};
  if (!stored.facility.empty()) recorded.scope.facility = FacilityName(stored.facility);
  return recorded;
}

std::vector<EventFields> event_fields() {
  std::vector<EventFields> all;
  for (const Entry& kind : kEntries) all.push_back({kind.name, kind.fields()});
  return all;
}

}  // namespace xffl::history
