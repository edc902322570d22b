#include "xffl/usage/accounting.h"

#include <set>
#include <variant>

#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/history/events.h"

namespace xffl::usage {
namespace {

constexpr size_t kMaxBytes = 256u << 20;
constexpr int64_t kMaxNodes = 1'000'000;

Json json_of(const submit::AccountedStart& start) {
  Json json{{"job", start.job.str()},
            {"state", start.state},
            {"start", start.start},
            {"nodes", start.nodes}};
  if (start.end) json["end"] = *start.end;
  if (start.energy_joules) json["energy_joules"] = *start.energy_joules;
  if (start.billing) json["billing"] = *start.billing;
  return json;
}

submit::AccountedStart start_of(const Json& json) {
  submit::AccountedStart start;
  start.job = JobId(json.at("job").get<std::string>());
  start.state = json.at("state").get<std::string>();
  start.start = json.at("start").get<int64_t>();
  if (json.contains("end")) start.end = json.at("end").get<int64_t>();
  const auto nodes = json.at("nodes").get<int64_t>();
  if (nodes < 1 || nodes > kMaxNodes || start.start <= 0 ||
      start.end.value_or(start.start) < start.start)
    throw Error(ErrorKind::kCorrupt, "a number is out of its range");
  start.nodes = static_cast<int>(nodes);
  if (json.contains("energy_joules")) start.energy_joules = json.at("energy_joules").get<int64_t>();
  if (json.contains("billing")) start.billing = json.at("billing").get<double>();
  return start;
}

}  // namespace

std::map<FacilityName, std::vector<submit::SubmittedJob>> jobs_of(
    const std::vector<history::StoredEvent>& events) {
  std::map<FacilityName, std::vector<submit::SubmittedJob>> jobs;
  std::map<FacilityName, std::string> names;  // of the last intended submission
  std::set<std::pair<FacilityName, JobId>> known;
  for (const history::StoredEvent& event : events) {
    const history::RecordedEvent recorded = history::decode(event);
    if (!recorded.scope.facility) continue;
    const FacilityName& facility = *recorded.scope.facility;
    if (const auto* intended = std::get_if<history::SubmitIntended>(&recorded.event))
      names[facility] = intended->job_name;
    // A kept allocation is the job of the attempt that submitted it first.
    if (const auto* submitted = std::get_if<history::Submitted>(&recorded.event))
      if (known.emplace(facility, submitted->job_id).second)
        jobs[facility].push_back({submitted->job_id, names[facility]});
  }
  return jobs;
}

std::string format_accounting(const Accounting& accounting) {
  Json json{{"schema", 1}, {"facilities", Json::object()}};
  for (const auto& [name, starts] : accounting) {
    Json& list = json["facilities"][name.str()] = Json::array();
    for (const submit::AccountedStart& start : starts) list.push_back(json_of(start));
  }
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Accounting parse_accounting(std::string_view text, std::string_view origin) {
  constexpr const char* kRemedy = "; `xffl usage --accounting` writes the file again";
  Json json;
  try {
    json = parse_json(text, origin, {.max_bytes = kMaxBytes});
  } catch (const Error& error) {
    throw Error(ErrorKind::kCorrupt, error.what() + std::string(kRemedy));
  }
  try {
    if (json.at("schema") != 1) throw Error(ErrorKind::kCorrupt, "its schema is not 1");
    Accounting accounting;
    for (const auto& [name, starts] : json.at("facilities").items()) {
      std::vector<submit::AccountedStart>& list = accounting[FacilityName(name)];
      for (const Json& start : starts) list.push_back(start_of(start));
    }
    return accounting;
  } catch (const std::exception& problem) {  // of the JSON library, of a name, of a number
    throw Error(ErrorKind::kCorrupt, std::string(origin) + ": " + problem.what() + kRemedy);
  }
}

Accounting read_accounting(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) return {};
  return parse_accounting(read_file(path, kMaxBytes), path.string());
}

}  // namespace xffl::usage
