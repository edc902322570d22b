#include "xffl/status/status.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <set>
#include <utility>

#include "status_parts.h"
#include "xffl/base/error.h"
#include "xffl/base/json.h"
#include "xffl/base/log.h"
#include "xffl/base/scrub.h"
#include "xffl/history/run_folder.h"
#include "xffl/history/store.h"

namespace xffl::status {
namespace {

std::string facility_state(const history::FacilityState& facility) {
  if (facility.accepted) return "accepted";
  if (facility.missing) return "missing";
  const history::Attempt* attempt = facility.current();
  if (attempt == nullptr) return "not started";
  if (attempt->failure) return "failed";
  if (!attempt->job_id.empty()) return "submitted";
  if (attempt->submit_intended) return "submission unknown";
  return attempt->pushed ? "pushed" : "pushing";
}

// The facility's share of the weights in the round's mean; none before the mean, and for a facility
// outside it.
std::optional<double> share_of(const history::RoundState& round, const FacilityName& name) {
  double sum = 0;
  std::optional<double> own;
  for (const history::Participant& participant : round.participants) {
    if (!participant.weight) return std::nullopt;
    sum += *participant.weight;
    if (participant.facility == name) own = participant.weight;
  }
  if (!own || !(sum > 0)) return std::nullopt;
  return *own / sum;
}

std::string share_text(const history::RoundState& round, const FacilityName& name) {
  const auto share = share_of(round, name);
  if (!share) return "";
  char text[40];
  std::snprintf(text, sizeof text, ", %.1f %% of the mean", 100 * *share);
  return text;
}

std::string losses(const history::FacilityState& facility) {
  if (!facility.accepted) return "";
  const job::JobReport& report = facility.accepted->report;
  if (report.steps == 0) return "";
  char text[160];
  std::snprintf(text, sizeof text, "  %lld tokens, loss %.4f, %.0f tokens/s",
                static_cast<long long>(report.tokens), report.train_loss, report.tokens_per_second);
  std::string line = text;
  for (const job::ValidationResult& result : report.validation) {
    std::snprintf(text, sizeof text, ", %s %.4f", result.name.c_str(), result.nll_before);
    line += text;
    if (!job::is_measured_after(report, result)) continue;
    std::snprintf(text, sizeof text, " -> %.4f", result.nll_after);
    line += text;
    if (result.accuracy_after > 0) {
      std::snprintf(text, sizeof text, " (accuracy %.3f -> %.3f)", result.accuracy_before,
                    result.accuracy_after);
      line += text;
    }
  }
  return line;
}

std::string failure(const history::FacilityState& facility) {
  if (facility.missing) return "  (" + log::printable(*facility.missing, 300) + ")";
  const history::Attempt* attempt = facility.current();
  if (attempt != nullptr && attempt->failure)
    return "  (" + log::printable(*attempt->failure, 300) + ")";
  return "";
}

// The entry of the running coordinator's status file; null for a facility whose part of the round
// has ended, and in other rounds.
const history::FacilityActivity* live_entry(const RunStatus& status, int round,
                                            const FacilityName& name,
                                            const history::FacilityState& facility) {
  const auto live = status.live.find(name);
  const bool counts = live != status.live.end() && live->second.round == round &&
                      !facility.accepted && !facility.missing;
  return counts ? &live->second : nullptr;
}

std::string activity(const RunStatus& status, int round, const FacilityName& name,
                     const history::FacilityState& facility) {
  const history::FacilityActivity* live = live_entry(status, round, name, facility);
  return activity_of(status, round, name, facility) +
         (live == nullptr ? "" : " (since " + live->since_utc + ")");
}

Json facility_json(const history::FacilityState& facility, const std::string& activity) {
  Json json;
  json["state"] = facility_state(facility);
  json["doing"] = activity;
  const history::Attempt* attempt = facility.current();
  json["attempt"] = attempt == nullptr ? 0 : attempt->number;
  json["job_id"] = attempt == nullptr ? "" : attempt->job_id;
  if (facility.missing) json["missing"] = *facility.missing;
  if (facility.accepted) {
    json["update_sha256"] = facility.accepted->update_sha256;
    json["report"] = parse_json(job::format_job_report(facility.accepted->report), "report");
  }
  return json;
}

// The reason of the last stop; null unless the run is stopped.
const history::Stopped* stopped(const RunStatus& status) {
  const auto& stopped = status.run_state.stopped;
  return status.state == "stopped" && stopped ? &*stopped : nullptr;
}

std::string credential_line(const FacilityName& name, const EndingCredential& credential,
                            Clock::UtcTime now) {
  const auto left = std::chrono::duration_cast<std::chrono::minutes>(credential.ends - now);
  std::string text = name.str() + ": its certificate ";
  text += credential.ends <= now ? "expired at " + format_utc(credential.ends)
                                 : "ends in " + std::to_string(left.count()) + " min, at " +
                                       format_utc(credential.ends);
  return text + ": renew it" +
         (credential.renew.empty() ? "" : " with: " + log::printable(credential.renew, 300)) + "\n";
}

// A reason may have several lines, such as the differences of xffl.yaml.
std::string printable_lines(const std::string& text) {
  std::string shown;
  for (size_t begin = 0; begin < text.size() && shown.size() < 4000;) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    shown += (shown.empty() ? "" : "\n") + log::printable(text.substr(begin, end - begin), 2000);
    begin = end + 1;
  }
  return shown;
}

// The first round with its facilities; 1 before the first round.
int first_detailed(const std::map<int, history::RoundState>& rounds) {
  for (const auto& [number, round] : rounds)
    if (!round.facilities.empty()) return number;
  return 1;
}

std::string stop_reason(const RunStatus& status) {
  if (status.state != "stopped") return "";
  const history::Stopped* why = stopped(status);
  std::string text =
      why != nullptr
          ? "stopped at " + why->time_utc + " (" + why->kind + "): " + printable_lines(why->reason)
          : "the coordinator ended without a reason (killed, or the machine crashed)";
  return text + "\ncontinue with: " + continue_command(status) + "\n";
}

// The facilities that are no members of the next round, and its new members.
std::string membership_lines(const history::RunState& run_state) {
  std::string text;
  const plan::Done done = run_state.done();
  for (const auto& [name, left] : run_state.left) {
    const bool takes_part = done.members.contains(name) && !left.now;
    text += name.str() + (takes_part ? " LEAVES after this round (" : " has LEFT (") +
            log::printable(left.reason, 300) + "): it takes part again with `xffl join " +
            name.str() + "`\n";
  }
  for (const FacilityName& name : run_state.joined)
    if (!done.members.empty() && !done.members.contains(name))
      text += name.str() + " takes part from the next round on\n";
  return text;
}

Json round_json(const RunStatus& status, int number, const history::RoundState& round) {
  Json json;
  json["round"] = number;
  json["state"] = round_state(round, status.run_state);
  if (!round.evaluates) {
    json["model_sha256"] = round.model_sha256;
    json["master_sha256"] = round.master_sha256;
    json["participants"] = round.participant_names();
  }
  json["facilities"] = Json::object();
  for (const auto& [name, facility] : round.facilities) {
    Json& entry = json["facilities"][name.str()];
    entry = facility_json(facility, activity(status, number, name, facility));
    const auto live = status.live.find(name);
    if (live != status.live.end() && live->second.round == number && live->second.training)
      entry["training"] = history::training_json(*live->second.training);
    if (const auto share = share_of(round, name)) entry["share"] = *share;
  }
  return json;
}

// --- The table of losses ---

constexpr size_t kLineWidth = 80;
constexpr size_t kRoundWidth = 7;
constexpr size_t kCellWidth = 18;  // "4.5321 (92.97)", "12.3456 (2.3e+05)"

using ValidationSet = std::pair<std::string, std::string>;  // facility, name
// The cells, by the number of the global model.
using LossRows = std::map<int, std::map<ValidationSet, double>>;

std::string cell(double nll) {
  char text[64];
  const double perplexity = std::exp(nll);
  std::snprintf(text, sizeof text, perplexity < 1e5 ? "%.4f (%.2f)" : "%.4f (%.1e)", nll,
                perplexity);
  return text;
}

std::string title(const ValidationSet& set) { return set.first + " " + set.second; }

size_t width(const ValidationSet& set) { return std::max(title(set).size(), kCellWidth) + 2; }

std::string right(const std::string& text, size_t width) {
  return std::string(width - std::min(width, text.size()), ' ') + text;
}

// The end of the sets from `begin` on that fit in one line; at least one set.
std::vector<ValidationSet>::const_iterator fitting(std::vector<ValidationSet>::const_iterator begin,
                                                   std::vector<ValidationSet>::const_iterator end) {
  size_t used = kRoundWidth;
  auto it = begin;
  do used += width(*it++);
  while (it != end && used + width(*it) <= kLineWidth);
  return it;
}

// Has a row for each model from `first` to `last` at least.
std::string loss_table(LossRows rows, int first, int last) {
  std::set<ValidationSet> known;
  for (const auto& [round, losses] : rows)
    for (const auto& [set, nll] : losses) known.insert(set);
  if (known.empty()) return "";
  const std::vector<ValidationSet> sets(known.begin(), known.end());
  for (int round = first; round <= last; ++round) rows[round];
  std::string text = "global model: loss (perplexity)";
  if (first > 0) text += ", from round " + std::to_string(first) + "; all: `xffl status --json`";
  text += "\n";
  for (auto begin = sets.cbegin(); begin != sets.cend();) {
    const auto end = fitting(begin, sets.cend());
    text += right("round", kRoundWidth);
    for (auto set = begin; set != end; ++set) text += right(title(*set), width(*set));
    text += "\n";
    for (const auto& [round, losses] : rows) {
      text += right(std::to_string(round), kRoundWidth);
      for (auto set = begin; set != end; ++set) {
        const auto found = losses.find(*set);
        text += right(found == losses.end() ? "-" : cell(found->second), width(*set));
      }
      text += "\n";
    }
    begin = end;
  }
  return text;
}

}  // namespace

std::string activity_of(const RunStatus& status, int round, const FacilityName& name,
                        const history::FacilityState& facility) {
  const history::FacilityActivity* live = live_entry(status, round, name, facility);
  return live == nullptr ? facility_state(facility) : log::printable(live->activity, 400);
}

std::string round_state(const history::RoundState& round, const history::RunState& run) {
  if (round.evaluates) return run.completed || run.cancelled ? "over" : "measuring";
  if (round.published) return "published";
  if (!round.model_sha256.empty()) return "aggregated";
  if (!round.participants.empty()) return "aggregating";
  return "training";
}

// Without --run, `xffl run` continues the newest run.
std::string continue_command(const RunStatus& status) {
  const std::string run = status.folder.filename().string();
  const auto newest = history::latest_run(status.folder.parent_path());
  return "xffl run" + (newest && newest->str() != run ? " --run " + run : "");
}

RunStatus read_status(const std::filesystem::path& run_folder, int rounds_planned, Rounds rounds) {
  const std::filesystem::path journal = run_folder / "journal.db";
  if (!std::filesystem::exists(journal))
    throw Error(ErrorKind::kNotFound,
                "no run exists in " + run_folder.string() + ": start one with `xffl run`");
  RunStatus status;
  status.folder = run_folder;
  status.rounds_planned = rounds_planned;
  status.coordinator = history::lock_holder(journal);
  status.run_state = rounds == Rounds::kAll ? history::replay(history::read_events(journal))
                                            : history::read_newest(journal);
  if (!status.coordinator.empty()) {
    status.live = history::read_activities(run_folder / "live.json");
    status.last_sign = history::last_sign_of_life(run_folder / "live.json");
  }
  status.state = status.run_state.cancelled   ? "cancelled"
                 : status.run_state.completed ? "completed"
                 : status.coordinator.empty() ? "stopped"
                                              : "running";
  return status;
}

std::string silence_text(const std::string& coordinator,
                         const std::optional<Clock::UtcTime>& last_sign, Clock::UtcTime now) {
  if (coordinator.empty() || !last_sign || now - *last_sign < kSilence) return "";
  const auto minutes = std::chrono::duration_cast<std::chrono::minutes>(now - *last_sign).count();
  return "the coordinator (" + coordinator + ") has given no sign of life for " +
         std::to_string(minutes) +
         " min: it is frozen, or its disk hangs; look at the process on its machine (a stopped one "
         "continues with `kill -CONT`)";
}

std::string headline(const RunStatus& status) {
  return "run " + status.folder.filename().string() + " of " + status.run_state.project + ": " +
         status.state + ", " + std::to_string(status.run_state.done().rounds_published) + " of " +
         std::to_string(status.rounds_planned) + " rounds published";
}

std::string format_status(const RunStatus& status, Clock::UtcTime now) {
  const plan::Done done = status.run_state.done();
  std::string text = headline(status) + "\n";
  if (const auto& rule = status.run_state.stop_rule)
    text += "no round follows: " + log::printable(rule->text(), 400) + "\n";
  if (!status.coordinator.empty()) text += "coordinator: " + status.coordinator + "\n";
  if (const std::string silence = silence_text(status.coordinator, status.last_sign, now);
      !silence.empty())
    text += silence + "\n";
  // The text shows only the last rounds; --json shows all rounds.
  constexpr int kShown = 20;
  const int first =
      std::max(done.rounds_published - kShown + 1, first_detailed(status.run_state.rounds));
  if (first > 1) text += "rounds 1 to " + std::to_string(first - 1) + ": published\n";
  for (const auto& [number, round] : status.run_state.rounds) {
    if (number < first) continue;
    text += round.evaluates ? "evaluation of the last model: "
                            : "round " + std::to_string(number) + ": ";
    text += round_state(round, status.run_state);
    if (!round.model_sha256.empty()) text += "  " + round.model_sha256.substr(0, 16);
    text += "\n";
    for (const auto& [name, facility] : round.facilities)
      text += "  " + name.str() + ": " + activity(status, number, name, facility) +
              losses(facility) + share_text(round, name) + failure(facility) + "\n";
  }
  const bool ended = status.run_state.completed || status.run_state.cancelled;
  for (const auto& [name, reason] : status.run_state.paused)
    if (!ended)
      text += name.str() + " is PAUSED (" + log::printable(reason, 300) +
              "): continue with `xffl resume " + name.str() + "`\n";
  if (!ended) text += membership_lines(status.run_state);
  text += format_global_losses(status.run_state);
  for (const auto& [name, credential] : status.credentials)
    if (!ended) text += credential_line(name, credential, now);
  return text + stop_reason(status);
}

namespace {

// A reason may hold a secret, of a user or of a facility.
void scrub_texts(Json& json) {
  if (json.is_string()) json = scrubbed(json.get_ref<const std::string&>());
  if (json.is_structured())
    for (Json& item : json) scrub_texts(item);
}

}  // namespace

std::string format_status_json(const RunStatus& status, bool one_line) {
  Json json;
  json["schema"] = 1;
  const plan::Done done = status.run_state.done();
  json["run"] = status.folder.filename().string();
  json["project"] = status.run_state.project;
  json["state"] = status.state;
  json["coordinator"] = status.coordinator;
  json["last_sign_of_life"] =
      status.last_sign ? Json(format_utc(*status.last_sign)) : Json(nullptr);
  json["rounds"] = status.rounds_planned;
  json["rounds_published"] = done.rounds_published;
  json["model_sha256"] = done.model_sha256;
  json["stop_rule"] = nullptr;
  if (const auto& rule = status.run_state.stop_rule)
    json["stop_rule"] = {{"rule", rule->rule}, {"reason", rule->reason}};
  json["paused"] = Json::object();
  for (const auto& [name, reason] : status.run_state.paused) json["paused"][name.str()] = reason;
  json["left"] = Json::object();
  for (const auto& [name, left] : status.run_state.left)
    json["left"][name.str()] = {{"reason", left.reason}, {"now", left.now}};
  json["stopped"] = nullptr;
  if (const history::Stopped* why = stopped(status))
    json["stopped"] = {{"time", why->time_utc}, {"kind", why->kind}, {"reason", why->reason}};
  json["credentials"] = Json::object();
  for (const auto& [name, credential] : status.credentials)
    json["credentials"][name.str()] = {{"ends", format_utc(credential.ends)},
                                       {"renew", credential.renew}};
  json["rounds_detail"] = Json::array();
  json["evaluation"] = nullptr;
  for (const auto& [number, round] : status.run_state.rounds) {
    if (round.evaluates)
      json["evaluation"] = round_json(status, number, round);
    else
      json["rounds_detail"].push_back(round_json(status, number, round));
  }
  json["validation"] = losses_json(global_losses(status.run_state));
  scrub_texts(json);
  return json.dump(one_line ? -1 : 2) + "\n";
}

Json losses_json(const std::vector<GlobalLoss>& losses) {
  Json list = Json::array();
  for (const GlobalLoss& loss : losses)
    list.push_back({{"round", loss.round},
                    {"facility", loss.facility.str()},
                    {"set", loss.set},
                    {"tokens", loss.tokens},
                    {"loss", loss.nll},
                    {"perplexity", std::exp(loss.nll)},
                    {"accuracy", loss.accuracy > 0 ? Json(loss.accuracy) : Json()}});
  return list;
}

std::vector<GlobalLoss> global_losses(const history::RunState& run_state) {
  std::vector<GlobalLoss> losses;
  for (const auto& [number, round] : run_state.rounds)
    for (const auto& [name, facility] : round.facilities) {
      if (!facility.accepted) continue;
      for (const job::ValidationResult& set : facility.accepted->report.validation)
        losses.push_back(
            {number - 1, name, set.name, set.tokens, set.nll_before, set.accuracy_before});
    }
  return losses;
}

std::string format_global_losses(const history::RunState& run_state) {
  LossRows rows;
  for (const GlobalLoss& loss : global_losses(run_state))
    rows[loss.round][{loss.facility.str(), loss.set}] = loss.nll;
  return loss_table(std::move(rows), first_detailed(run_state.rounds) - 1,
                    run_state.done().rounds_published);
}

std::string format_global_losses(const std::filesystem::path& journal) {
  const std::string_view accepted = history::kind_of(history::UpdateAccepted{}),
                         lost = history::kind_of(history::UpdateLost{}),
                         published = history::kind_of(history::Published{});
  LossRows rows;
  int last = 0;
  history::visit_events(journal, {}, [&](const history::StoredEvent& stored) {
    const int model = stored.round - 1;
    if (stored.kind == accepted) {
      const history::RecordedEvent recorded = history::decode(stored);
      for (const auto& set : std::get<history::UpdateAccepted>(recorded.event).report.validation)
        rows[model][{stored.facility, set.name}] = set.nll_before;
    } else if (stored.kind == lost && rows.contains(model)) {
      std::erase_if(rows[model],
                    [&](const auto& each) { return each.first.first == stored.facility; });
      if (rows[model].empty()) rows.erase(model);
    } else if (stored.kind == published) {
      last = std::max(last, stored.round);
    }
  });
  return loss_table(std::move(rows), 0, last);
}

}  // namespace xffl::status
