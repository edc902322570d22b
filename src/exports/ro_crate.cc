#include "xffl/exports/ro_crate.h"

#include <map>
#include <optional>
#include <set>

#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/base/log.h"

namespace xffl::exports {
namespace {

using report::AttemptStory;
using report::Outcome;
using report::RoundStory;
using report::RunStory;

constexpr size_t kMaxReason = 1000;
constexpr const char* kProfile = "https://w3id.org/ro/wfrun/process/0.5";

Json id(const std::string& text) { return {{"@id", text}}; }

// The time as process runs write it: with an offset.
std::string time_of(Clock::UtcTime time) {
  std::string text = format_utc(time);
  text.replace(text.size() - 1, 1, "+00:00");  // of the Z
  return text;
}

// RO-Crate: a single value stands without a list.
Json one_or_list(const std::vector<Json>& values) {
  if (values.size() == 1) return values.front();
  Json list = Json::array();
  for (const Json& value : values) list.push_back(value);
  return list;
}

class Crate {
 public:
  Crate(const RunStory& story, const RoCrate& crate) : story_(story), crate_(crate) {
    for (const FacilityName& name : story.facilities) {
      const std::string number = std::to_string(facilities_.size() + 1);
      facilities_[name] = number;
      add({{"@id", "#facility-" + number},
           {"@type", "Organization"},
           {"name", crate.names_facilities ? name.str() : "facility " + number}});
    }
    add({{"@id", "#xffl"},
         {"@type", "SoftwareApplication"},
         {"name", "xffl"},
         {"version", story.version}});
  }

  void add_attempt(const AttemptStory& attempt) {
    if (attempt.outcome == Outcome::kOpen || !attempt.ended) return;
    const std::string facility = facilities_[attempt.facility];
    const std::string own = "round-" + std::to_string(attempt.round) + "-facility-" + facility +
                            "-attempt-" + std::to_string(attempt.number);
    Json action = {{"@id", "#" + own},
                   {"@type", "CreateAction"},
                   {"name", "training, " + own},
                   {"description", description_of(attempt)},
                   {"agent", id("#facility-" + facility)},
                   {"instrument", id(trainer_of(attempt))},
                   {"startTime", time_of(*attempt.opened)},
                   {"endTime", time_of(*attempt.ended)}};
    if (const auto base = model_before(attempt.round)) action["object"] = id(*base);
    const bool succeeded = attempt.outcome == Outcome::kAccepted;
    action["actionStatus"] =
        std::string("http://schema.org/") + (succeeded ? "Completed" : "Failed") + "ActionStatus";
    if (!succeeded)
      action["error"] = crate_.names_facilities && !attempt.reason.empty()
                            ? log::printable(attempt.reason, kMaxReason)
                            : "the attempt failed";
    if (succeeded && !attempt.report->update_sha256.empty()) {
      const std::string update = "#update-" + own;
      add({{"@id", update},
           {"@type", "CreativeWork"},
           {"name", "update, " + own},
           {"identifier", "sha256:" + attempt.report->update_sha256}});
      updates_[attempt.round][attempt.facility] = update;
      action["result"] = id(update);
    }
    add_action(action);
  }

  void add_mean(const RoundStory& round) {
    if (!round.published) return;
    const std::string number = std::to_string(round.number);
    std::vector<Json> updates;
    for (const history::Participant& participant : round.participants)
      if (const auto found = updates_[round.number].find(participant.facility);
          found != updates_[round.number].end())
        updates.push_back(id(found->second));
    const std::string model = add_model(round.number, round.model_sha256);
    Json action = {
        {"@id", "#mean-" + number},
        {"@type", "CreateAction"},
        {"name", "weighted mean of the updates of round " + number},
        {"description", "The mean of " + std::to_string(round.participants.size()) +
                            " updates, each with its weight, gives the model of round " + number},
        {"instrument", id("#xffl")},
        {"result", id(model)},
        {"endTime", time_of(*round.published)},
        {"actionStatus", "http://schema.org/CompletedActionStatus"}};
    if (round.frozen) action["startTime"] = time_of(*round.frozen);
    if (!updates.empty()) action["object"] = one_or_list(updates);
    add_action(action);
  }

  std::string take() {
    const bool is_address = crate_.license.starts_with("https://");
    const std::string license = log::printable(
        is_address ? crate_.license : "https://spdx.org/licenses/" + crate_.license, 300);
    const std::string project = log::printable(story_.project, 200);
    Json root = {{"@id", "./"},
                 {"@type", "Dataset"},
                 {"name", "federated training " + project + ", run " + story_.run},
                 {"description", "Provenance of a federated training with xffl: " +
                                     std::to_string(story_.rounds_published) +
                                     " published rounds. Metadata only."},
                 {"datePublished", format_utc(story_.last_event)},
                 {"license", id(license)},
                 {"conformsTo", id(kProfile)}};
    if (!actions_.empty()) root["mentions"] = one_or_list(actions_);
    Json graph = Json::array();
    graph.push_back({{"@id", "ro-crate-metadata.json"},
                     {"@type", "CreativeWork"},
                     {"about", id("./")},
                     {"conformsTo", id("https://w3id.org/ro/crate/1.1")}});
    graph.push_back(root);
    graph.push_back({{"@id", kProfile},
                     {"@type", "CreativeWork"},
                     {"name", "Process Run Crate"},
                     {"version", "0.5"}});
    graph.push_back({{"@id", license},
                     {"@type", "CreativeWork"},
                     {"name", log::printable(crate_.license, 300)}});
    for (const Json& entity : entities_) graph.push_back(entity);
    const Json json = {{"@context", "https://w3id.org/ro/crate/1.1/context"}, {"@graph", graph}};
    return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
  }

 private:
  void add(Json entity) { entities_.push_back(std::move(entity)); }
  void add_action(const Json& action) {
    actions_.push_back(id(action["@id"].get<std::string>()));
    add(action);
  }

  std::string add_model(int round, const std::string& sha256) {
    const std::string model = "#model-" + std::to_string(round);
    if (models_.insert(round).second)
      add({{"@id", model},
           {"@type", "CreativeWork"},
           {"name",
            round == 0 ? "initial model" : "global model of round " + std::to_string(round)},
           {"identifier", "sha256:" + sha256}});
    return model;
  }

  // The model that the jobs of `round` got.
  std::optional<std::string> model_before(int round) {
    if (models_.contains(round - 1)) return "#model-" + std::to_string(round - 1);
    if (round != 1) return std::nullopt;
    for (const AttemptStory& attempt : story_.attempts)
      if (attempt.round == 1 && attempt.report)
        return add_model(0, attempt.report->base_model_sha256);
    return std::nullopt;
  }

  static std::string description_of(const AttemptStory& attempt) {
    const std::string start = "Attempt " + std::to_string(attempt.number) + " in round " +
                              std::to_string(attempt.round) + ": ";
    if (!attempt.report) return start + "no report";
    if (attempt.report->update_sha256.empty()) return start + "measures the model";
    return start + std::to_string(attempt.report->steps) + " optimizer steps on " +
           std::to_string(attempt.report->samples) + " samples, " +
           std::to_string(attempt.report->tokens) + " tokens";
  }

  // The entity of the attempt's program, as the program names itself.
  std::string trainer_of(const AttemptStory& attempt) {
    const std::string name =
        attempt.report ? log::printable(attempt.report->trainer, 200) : "trainer, not known";
    const auto [found, is_new] =
        trainers_.try_emplace(name, "#trainer-" + std::to_string(trainers_.size() + 1));
    if (is_new) add({{"@id", found->second}, {"@type", "SoftwareApplication"}, {"name", name}});
    return found->second;
  }

  const RunStory& story_;
  const RoCrate& crate_;
  std::map<FacilityName, std::string> facilities_;  // its number
  std::map<std::string, std::string> trainers_;
  std::map<int, std::map<FacilityName, std::string>> updates_;  // by round
  std::set<int> models_;
  std::vector<Json> entities_, actions_;
};

}  // namespace

std::string format_ro_crate(const RunStory& story, const RoCrate& crate) {
  Crate made(story, crate);
  for (const auto& [number, round] : story.rounds) {
    for (const AttemptStory& attempt : story.attempts)
      if (attempt.round == number) made.add_attempt(attempt);
    made.add_mean(round);
  }
  return made.take();
}

void write_ro_crate(const std::string& text, const std::filesystem::path& to) {
  make_dirs(to);
  write_file_atomic(to / "ro-crate-metadata.json", text, 0644);
}

}  // namespace xffl::exports
