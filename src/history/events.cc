// How it works: fields() names the fields of each event once. Three visitors go through them: one
// writes the payload, one reads it, one lists the names. kKinds adds the kind's name, in the order
// of the variant.
#include "xffl/history/events.h"

#include <algorithm>
#include <array>
#include <concepts>
#include <filesystem>
#include <type_traits>
#include <utility>

#include "xffl/base/error.h"

namespace xffl::history {
namespace {

template <class T, class E>
concept Is = std::same_as<std::remove_const_t<T>, E>;

// A visitor has three kinds of fields:
//   required   always written; absent: kCorrupt
//   written    always written; absent, as in journals of earlier releases: the default
//   if_set     written unless it is the default

void fields(auto& v, Is<RunCreated> auto& e) {
  v.required("run", e.run);
  v.required("project", e.project);
  v.required("secret", e.secret);
  v.required("config_sha256", e.config_sha256);
}
void fields(auto& v, Is<RunPlaced> auto& e) {
  v.required("host", e.location.host);
  v.required("folder", e.location.folder);
  v.required("device", e.location.device);
  v.required("inode", e.location.inode);
  v.required("born_ns", e.location.born_ns);
  v.written("adopted", e.adopted);
}
void fields(auto& v, Is<ConfigChanged> auto& e) { v.required("config_sha256", e.config_sha256); }
void fields(auto& v, Is<ModelImported> auto& e) {
  v.required("model_sha256", e.model_sha256);
  v.required("master_sha256", e.master_sha256);
  v.if_set("adapted_sha256", e.adapted_sha256);
}
void fields(auto&, Is<RunResumed> auto&) {}
void fields(auto& v, Is<RunStopped> auto& e) {
  v.required("kind", e.kind);
  v.required("reason", e.reason);
}
void fields(auto& v, Is<RunCompleted> auto& e) { v.written("model_sha256", e.model_sha256); }
void fields(auto&, Is<RunCancelled> auto&) {}

void fields(auto& v, Is<FacilityPaused> auto& e) { v.required("reason", e.reason); }
void fields(auto&, Is<FacilityResumed> auto&) {}

void fields(auto& v, Is<RoundPlanned> auto& e) {
  v.written("base_sha256", e.base_sha256);
  v.written("plan_sha256", e.plan_sha256);
  v.required("facilities", e.facilities);
  v.if_set("evaluates", e.evaluates);
}
void fields(auto& v, Is<ParticipantsFrozen> auto& e) {
  v.required("facilities", e.facilities);
  v.written("updates", e.updates);
  v.written("weights", e.weights);
}
void fields(auto& v, Is<Aggregated> auto& e) {
  v.required("model_sha256", e.model_sha256);
  v.required("master_sha256", e.master_sha256);
}
void fields(auto& v, Is<Published> auto& e) { v.written("model_sha256", e.model_sha256); }

void fields(auto& v, Is<FacilityMissing> auto& e) { v.required("reason", e.reason); }

void fields(auto& v, Is<AttemptOpened> auto& e) { v.written("nonce", e.nonce); }
void fields(auto& v, Is<Pushed> auto& e) {
  v.written("moved_bytes", e.moved_bytes);
  v.if_set("seconds", e.seconds);
  v.if_set("whole_bytes", e.whole_bytes);
}
void fields(auto& v, Is<SubmitIntended> auto& e) {
  v.written("job_name", e.job_name);
  v.written("script_sha256", e.script_sha256);
}
void fields(auto& v, Is<Submitted> auto& e) {
  v.required("job_id", e.job_id);
  v.written("adopted", e.adopted);
  v.if_set("twins", e.twins);
}
void fields(auto& v, Is<AttemptFailed> auto& e) {
  v.required("reason", e.reason);
  v.if_set("charged", e.charged);
  v.if_set("steps", e.steps);
  v.if_set("output", e.output);
}
void fields(auto&, Is<CancelIntended> auto&) {}
void fields(auto&, Is<CancelConfirmed> auto&) {}
void fields(auto& v, Is<UpdateAccepted> auto& e) {
  v.required("update_sha256", e.update_sha256);
  v.required("report", e.report);
  v.if_set("change", e.change);
}
void fields(auto& v, Is<UpdateLost> auto& e) { v.required("reason", e.reason); }

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
template <class T>
Json to_json(const std::optional<T>& value) {
  return *value;
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
void read(JsonObject& json, std::string_view key, Name<Tag>& value) {
  try {
    value = Name<Tag>(json.string(key));
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kCorrupt) throw;
    json.fail(key, std::string("is no such name: ") + error.what());
  }
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
  try {
    for (std::string& text : json.strings(key)) values.emplace_back(std::move(text));
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kCorrupt) throw;
    json.fail(key, std::string("holds no such name: ") + error.what());
  }
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

// --- Visitors --------------------------------------------------------------------------------

class Writer {
 public:
  template <class T>
  void required(std::string_view key, const T& value) {
    json_[std::string(key)] = to_json(value);
  }
  template <class T>
  void written(std::string_view key, const T& value) {
    required(key, value);
  }
  template <class T>
  void if_set(std::string_view key, const T& value) {
    if (value != T()) required(key, value);
  }
  Json take() { return std::move(json_); }

 private:
  Json json_ = Json::object();
};

class Reader {
 public:
  explicit Reader(JsonObject& json) : json_(json) {}
  template <class T>
  void required(std::string_view key, T& value) {
    read(json_, key, value);
  }
  template <class T>
  void written(std::string_view key, T& value) {
    if (json_.has(key)) read(json_, key, value);
  }
  template <class T>
  void if_set(std::string_view key, T& value) {
    written(key, value);
  }

 private:
  JsonObject& json_;
};

class Lister {
 public:
  template <class T>
  void required(std::string_view key, const T&) {
    names.push_back(key);
  }
  template <class T>
  void written(std::string_view key, const T&) {
    names.push_back(key);
  }
  template <class T>
  void if_set(std::string_view key, const T&) {
    names.push_back(key);
  }
  std::vector<std::string_view> names;
};

// --- Kinds -----------------------------------------------------------------------------------

struct Kind {
  std::string_view name;
  size_t index;  // of the struct in Event
  Event (*read)(JsonObject& payload);
  Json (*write)(const Event& event);
  std::vector<std::string_view> (*fields)();
};

template <class E, size_t kIndex = 0>
constexpr size_t index_of() {
  if constexpr (std::same_as<E, std::variant_alternative_t<kIndex, Event>>)
    return kIndex;
  else
    return index_of<E, kIndex + 1>();
}

template <class E>
constexpr Kind kind(std::string_view name) {
  return {.name = name,
          .index = index_of<E>(),
          .read =
              [](JsonObject& payload) {
                E event;
                Reader reader(payload);
                history::fields(reader, event);
                return Event(std::move(event));
              },
          .write =
              [](const Event& event) {
                Writer writer;
                history::fields(writer, std::get<E>(event));
                return writer.take();
              },
          .fields =
              [] {
                Lister lister;
                const E event;
                history::fields(lister, event);
                return lister.names;
              }};
}

constexpr std::array kKinds = {
    kind<RunCreated>("run_created"),
    kind<RunPlaced>("run_placed"),
    kind<ConfigChanged>("config_changed"),
    kind<ModelImported>("model_imported"),
    kind<RunResumed>("run_resumed"),
    kind<RunStopped>("run_stopped"),
    kind<RunCompleted>("run_completed"),
    kind<RunCancelled>("run_cancelled"),
    kind<FacilityPaused>("facility_paused"),
    kind<FacilityResumed>("facility_resumed"),
    kind<RoundPlanned>("round_planned"),
    kind<ParticipantsFrozen>("participants_frozen"),
    kind<Aggregated>("aggregated"),
    kind<Published>("published"),
    kind<FacilityMissing>("facility_missing"),
    kind<AttemptOpened>("attempt_opened"),
    kind<Pushed>("pushed"),
    kind<SubmitIntended>("submit_intended"),
    kind<Submitted>("submitted"),
    kind<AttemptFailed>("attempt_failed"),
    kind<CancelIntended>("cancel_intended"),
    kind<CancelConfirmed>("cancel_confirmed"),
    kind<UpdateAccepted>("update_accepted"),
    kind<UpdateLost>("update_lost"),
};

constexpr bool in_order_of_the_variant() {
  for (size_t i = 0; i < kKinds.size(); ++i)
    if (kKinds[i].index != i) return false;
  return kKinds.size() == std::variant_size_v<Event>;
}
static_assert(in_order_of_the_variant(), "kKinds has one line per struct of Event, in its order");

}  // namespace

std::string_view kind_of(const Event& event) { return kKinds[event.index()].name; }

StoredEvent encode(const EventScope& scope, const Event& event) {
  const Kind& kind = kKinds[event.index()];
  return {.seq = 0,
          .time_utc = {},
          .kind = std::string(kind.name),
          .round = scope.round,
          .facility = scope.facility ? scope.facility->str() : "",
          .attempt = scope.attempt,
          .payload = kind.write(event).dump(-1, ' ', false, Json::error_handler_t::replace)};
}

RecordedEvent decode(const StoredEvent& stored) {
  const auto kind = std::find_if(kKinds.begin(), kKinds.end(),
                                 [&](const Kind& each) { return each.name == stored.kind; });
  if (kind == kKinds.end())
    throw Error(ErrorKind::kCorrupt, "event " + std::to_string(stored.seq) +
                                         " has the unknown kind '" + stored.kind +
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
  for (const Kind& kind : kKinds) all.push_back({kind.name, kind.fields()});
  return all;
}

}  // namespace xffl::history
