#include "recorded_run.h"

#include <variant>

#include "xffl/base/log.h"
#include "xffl/history/events.h"

namespace xffl::verify {

namespace fs = std::filesystem;

namespace {

// Keeps the order of the events that the checks compare.
void note(RecordedRun& run, const history::RecordedEvent& recorded) {
  const history::EventScope& scope = recorded.scope;
  if (std::holds_alternative<history::ConfigChanged>(recorded.event)) run.config_changed = true;
  if (scope.round == 0) return;
  RoundOrder& order = run.rounds[scope.round];
  if (const auto* planned = std::get_if<history::RoundPlanned>(&recorded.event)) {
    order.planned = recorded.seq;
    order.base_sha256 = planned->base_sha256;
  }
  if (std::holds_alternative<history::ParticipantsFrozen>(recorded.event))
    order.frozen = recorded.seq;
  if (std::holds_alternative<history::Aggregated>(recorded.event)) order.aggregated = recorded.seq;
  if (std::holds_alternative<history::Published>(recorded.event)) {
    order.published = recorded.seq;
    order.config_sha256 = run.state.config_sha256;
  }
  if (!scope.facility) return;
  if (const auto* opened = std::get_if<history::AttemptOpened>(&recorded.event))
    run.attempts.push_back(
        {recorded.seq, scope.round, *scope.facility, scope.attempt, opened->nonce});
  if (std::holds_alternative<history::UpdateAccepted>(recorded.event))
    order.accepted[*scope.facility] = recorded.seq;
  if (const auto* intended = std::get_if<history::SubmitIntended>(&recorded.event))
    run.scripts[{scope.round, *scope.facility}].insert(intended->script_sha256);
}

bool is_about_content(ErrorKind kind) {
  return kind == ErrorKind::kCorrupt || kind == ErrorKind::kRejected ||
         kind == ErrorKind::kNotFound || kind == ErrorKind::kConfig ||
         kind == ErrorKind::kUnsupported;
}

}  // namespace

RecordedRun read_run(const history::RunFolder& folder, const fs::path& project_folder) {
  RecordedRun run{.folder = folder,
                  .project_folder = project_folder,
                  .journal = history::audit_journal(folder.journal())};
  run.goes_on = !history::lock_holder(folder.journal()).empty();
  for (const history::StoredEvent& stored : run.journal.events) {
    try {
      const history::RecordedEvent recorded = history::decode(stored);
      history::apply(run.state, recorded);
      note(run, recorded);
    } catch (const Error& error) {
      run.impossible_event =
          "event " + std::to_string(stored.seq) + " (" + stored.kind + "): " + error.what();
      break;
    }
  }
  return run;
}

int newest_model(const RecordedRun& run) {
  int newest = 0;
  for (const auto& [number, round] : run.state.rounds)
    if (!round.model_sha256.empty()) newest = number;
  return newest;
}

std::string RecordedRun::global_sha256(int round) const {
  if (round == 0) return state.initial_sha256;
  const auto found = state.rounds.find(round);
  return found == state.rounds.end() ? "" : found->second.model_sha256;
}

std::string RecordedRun::master_sha256(int round) const {
  if (round == 0) return state.initial_master_sha256;
  const auto found = state.rounds.find(round);
  return found == state.rounds.end() ? "" : found->second.master_sha256;
}

std::string RecordedRun::name_of(const fs::path& path) const {
  return path.lexically_relative(folder.path()).string();
}

std::string RecordedRun::reason_of_absence(int round, int kept, const std::string& key) const {
  if (goes_on) return "absent; the run goes on, and its coordinator removes files";
  if (kept > 0 && round <= published() - kept) return "removed by policy." + key;
  if (config_changed && round < published())
    return "absent; an earlier value of policy." + key + " may have removed it";
  return "";
}

Findings::Findings(std::vector<Check>& checks, std::string name, std::string content)
    : checks_(checks), index_(checks.size()) {
  checks_.push_back({.name = std::move(name), .content = std::move(content)});
}

void Findings::pass(int64_t subjects) { checks_[index_].passed += subjects; }

void Findings::fail(const std::string& subject, const std::string& problem) {
  checks_[index_].failures.push_back({subject, problem});
}

void Findings::skip(const std::string& reason, const std::string& subject) {
  std::vector<NotChecked>& all = checks_[index_].not_checked;
  for (NotChecked& known : all)
    if (known.reason == reason) {
      if (!subject.empty()) known.subjects.push_back(subject);
      return;
    }
  all.push_back({reason, {}});
  if (!subject.empty()) all.back().subjects.push_back(subject);
}

void Findings::compare(const std::string& subject, const std::string& found,
                       const std::string& expected) {
  if (found == expected) return pass();
  fail(subject, "expected " + (expected.empty() ? "none" : expected) + ", found " +
                    (found.empty() ? "none" : found));
}

void Findings::fail_for(const std::string& subject, const Error& error) {
  if (!is_about_content(error.kind())) throw error;
  fail(subject, error.what());
}

}  // namespace xffl::verify
