// How it works: FacilityProjection handles a facility's part of a round, RunProjection the rest;
// each class has a take() for each of its events. take() rejects an event that cannot follow from
// the state: the journal is damaged, or its writer has a bug.
#include "xffl/history/run_history.h"

#include <algorithm>
#include <concepts>
#include <span>
#include <utility>

#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/history/work_files.h"

namespace xffl::history {
namespace {

[[noreturn]] void reject(const std::string& where, const std::string& why) {
  throw Error(ErrorKind::kCorrupt, where + " cannot have happened: " + why);
}

class FacilityProjection {
 public:
  FacilityProjection(FacilityState& facility, int attempt, const std::string& where)
      : facility_(facility), number_(attempt), where_(where) {}

  void take(const AttemptOpened& opened) {
    const Attempt* last = facility_.current();
    if (facility_.accepted || (last != nullptr && !last->failure))
      reject(where_, "another attempt was open");
    if (number_ != (last == nullptr ? 1 : last->number + 1))
      reject(where_, "attempt " + std::to_string(number_) + " was not the next");
    facility_.attempts.push_back(Attempt{.number = number_, .nonce = opened.nonce});
  }
  void take(const Pushed& pushed) {
    Attempt& attempt = last_attempt();
    attempt.pushed = true;
    attempt.packed = pushed.whole_bytes > 0;
    attempt.moved_bytes = pushed.moved_bytes;
    attempt.push_seconds = pushed.seconds.value_or(0);
  }
  void take(const SubmitIntended& intended) {
    last_attempt().submit_intended = true;
    last_attempt().job_name = intended.job_name;
  }
  void take(const Submitted& submitted) {
    Attempt& attempt = open_attempt();
    if (!attempt.submit_intended) reject(where_, "no submission was intended");
    attempt.job_id = submitted.job_id.str();
    if (!submitted.duplicates.empty()) attempt.duplicates = submitted.duplicates;
  }
  void take(const AttemptFailed& failed) {
    Attempt& attempt = last_attempt();
    attempt.failure = failed.reason;
    attempt.counts_as_attempt = failed.counts_as_attempt.value_or(true);
    attempt.steps = failed.steps.value_or(0);
  }
  void take(const CancelIntended&) { last_attempt().cancel_intended = true; }
  void take(const CancelConfirmed&) { last_attempt().cancel_intended = false; }
  void take(const UpdateAccepted& update) {
    const Attempt& attempt = open_attempt();
    if (!attempt.nonce.empty() && update.report.key.nonce != attempt.nonce)
      reject(where_, "its report answers another attempt than the one that was opened");
    facility_.accepted = Accepted{.facility = FacilityName(update.report.key.facility),
                                  .attempt = number_,
                                  .update_sha256 = update.update_sha256,
                                  .report = update.report};
  }
  void take(const FacilityMissing& missing) { facility_.missing = missing.reason; }

 private:
  /// The newest attempt, which must be the event's attempt and may have failed.
  Attempt& last_attempt() {
    if (facility_.attempts.empty() || facility_.attempts.back().number != number_)
      throw Error(ErrorKind::kCorrupt, where_ + " names attempt " + std::to_string(number_) +
                                           ", which is not the open one");
    return facility_.attempts.back();
  }
  Attempt& open_attempt() {
    Attempt& attempt = last_attempt();
    if (attempt.failure || facility_.accepted) reject(where_, "the attempt was over");
    return attempt;
  }

  FacilityState& facility_;
  int number_;
  const std::string& where_;
};

class RunProjection {
 public:
  RunProjection(RunState& run_state, const RecordedEvent& recorded, const std::string& where)
      : run_state_(run_state), recorded_(recorded), where_(where) {}

  void take(const RunCreated& created) {
    if (run_state_.identity) reject(where_, "the run had been created");
    if (!created.tag.empty() &&
        (created.tag.size() != 8 ||
         created.tag.find_first_not_of("0123456789abcdef") != std::string::npos))
      reject(where_, "the run's tag is not 8 hexadecimal digits");
    run_state_.identity = plan::RunIdentity{created.run, created.secret, created.tag};
    run_state_.project = created.project;
    run_state_.config_sha256 = created.config_sha256;
  }
  void take(const RunPlaced& placed) { run_state_.location = placed; }
  void take(const ConfigChanged& changed) {
    run_state_.config_sha256 = changed.config_sha256;
    for (RoundState* round : unfinished_rounds()) {
      for (auto& [name, facility] : round->facilities) renew_budget(facility);
    }
  }
  void take(const ModelImported& imported) {
    run_state_.initial_sha256 = imported.model_sha256;
    run_state_.initial_master_sha256 = imported.master_sha256;
    run_state_.adapted_sha256 = imported.adapted_sha256;
  }
  void take(const RunResumed& resumed) {
    // Without the failure of the round the deadline stays: a supervisor that restarts the
    // coordinator in a loop cannot move it.
    const bool has_failed =
        run_state_.stopped && run_state_.stopped->kind == to_string(ErrorKind::kFailed);
    run_state_.stopped.reset();
    for (RoundState* round : unfinished_rounds())
      for (auto& [name, facility] : round->facilities) {
        try_again(*round, facility, has_failed);
        if (!resumed.keeps_budgets.value_or(false)) renew_budget(facility);
      }
  }
  void take(const RunStopped& stopped) {
    run_state_.stopped = Stopped{recorded_.time_utc, stopped.kind, stopped.reason};
  }
  void take(const RunCompleted& completed) {
    require_same_model("the last published model", completed.model_sha256,
                       run_state_.done().model_sha256);
    run_state_.stopped.reset();
    run_state_.completed = true;
  }
  void take(const RunCancelled&) {
    run_state_.stopped.reset();
    run_state_.cancelled = true;
  }
  void take(const StopRuleMet& met) {
    if (run_state_.rounds.contains(run_state_.done().rounds_published + 1))
      reject(where_, "the next round was planned");
    run_state_.stop_rule = met;
  }
  void take(const FacilityPaused& paused) { run_state_.paused[facility_name()] = paused.reason; }
  void take(const FacilityResumed& resumed) {
    run_state_.paused.erase(facility_name());
    if (!resumed.new_budget.value_or(false)) return;
    for (RoundState* round : unfinished_rounds())
      if (const auto facility = round->facilities.find(facility_name());
          facility != round->facilities.end())
        renew_budget(facility->second);
  }
  void take(const FacilityLeft& left) {
    run_state_.left[facility_name()] = {left.reason, left.now};
    if (left.now && !run_state_.rounds.empty()) {
      RoundState& newest = run_state_.rounds.rbegin()->second;
      if (!newest.published && newest.members.contains(facility_name()))
        newest.departed[facility_name()] = left.reason;
    }
    run_state_.joined.erase(facility_name());
  }
  void take(const FacilityJoined&) {
    run_state_.left.erase(facility_name());
    run_state_.joined.insert(facility_name());
  }
  void take(const RoundPlanned& planned) {
    require_same_model("the last published model", planned.base_sha256,
                       run_state_.done().model_sha256);
    round().planned = true;
    round().evaluates = planned.evaluates;
    if (planned.evaluates) round().first_submission_utc = recorded_.time_utc;
    for (const FacilityName& name : planned.facilities) round().facilities[name];
    round().members = {planned.facilities.begin(), planned.facilities.end()};
  }
  void take(const ParticipantsFrozen& frozen) {
    const size_t count = frozen.facilities.size();
    const auto fits = [&](const auto& list) { return list.empty() || list.size() == count; };
    if (!fits(frozen.updates) || !fits(frozen.weights))
      reject(where_, "its lists differ in length");
    std::vector<Participant>& participants = round().participants;
    participants.clear();
    for (size_t i = 0; i < count; ++i) {
      participants.push_back({.facility = frozen.facilities[i], .update_sha256 = {}, .weight = {}});
      if (!frozen.updates.empty()) participants[i].update_sha256 = frozen.updates[i];
      if (!frozen.weights.empty()) participants[i].weight = frozen.weights[i];
    }
  }
  void take(const Aggregated& aggregated) {
    round().model_sha256 = aggregated.model_sha256;
    round().master_sha256 = aggregated.master_sha256;
  }
  void take(const Published& published) {
    if (round().model_sha256.empty()) reject(where_, "the round was not aggregated");
    require_same_model("the round's model", published.model_sha256, round().model_sha256);
    if (recorded_.scope.round != run_state_.done().rounds_published + 1)
      reject(where_, "round " + std::to_string(recorded_.scope.round) + " was not the next");
    round().published = true;
  }
  void take(const UpdateLost& lost) {
    FacilityState& facility = this->facility();
    if (!facility.accepted || facility.accepted->attempt != recorded_.scope.attempt ||
        round().published)
      reject(where_, "the update was not accepted, or its round has ended");
    facility.accepted.reset();
    facility.attempts.back().failure = lost.reason;
    facility.attempts.back().counts_as_attempt = false;
    round().participants.clear();
  }

  /// The events of FacilityProjection.
  template <class E>
  void take(const E& event) {
    FacilityProjection(facility(), recorded_.scope.attempt, where_).take(event);
    if constexpr (std::same_as<E, UpdateAccepted>)
      facility().accepted->time_utc = recorded_.time_utc;
    if constexpr (std::same_as<E, Submitted>)
      if (round().first_submission_utc.empty()) round().first_submission_utc = recorded_.time_utc;
  }

 private:
  // Earlier releases did not record every model.
  void require_same_model(const std::string& name, const std::string& recorded,
                          const std::string& known) const {
    if (!recorded.empty() && recorded != known)
      reject(where_, name + " was " + known + ", not " + recorded);
  }
  const FacilityName& facility_name() const {
    if (!recorded_.scope.facility) throw Error(ErrorKind::kCorrupt, where_ + " names no facility");
    return *recorded_.scope.facility;
  }
  RoundState& round() { return run_state_.rounds[recorded_.scope.round]; }
  FacilityState& facility() { return round().facilities[facility_name()]; }

  /// The rounds whose facilities may still train.
  std::vector<RoundState*> unfinished_rounds() {
    std::vector<RoundState*> unfinished;
    for (auto& [number, round] : run_state_.rounds)
      if (!round.published && round.participants.empty()) unfinished.push_back(&round);
    return unfinished;
  }
  // The facility is no longer missing.
  void try_again(RoundState& round, FacilityState& facility, bool renews_deadline) {
    if (renews_deadline && facility.missing && !round.first_submission_utc.empty())
      round.first_submission_utc = recorded_.time_utc;
    facility.missing.reset();
  }
  void renew_budget(FacilityState& facility) {
    const Attempt* current = facility.current();
    if (current != nullptr)
      facility.attempts_before_renewal = current->failure ? current->number : current->number - 1;
  }

  RunState& run_state_;
  const RecordedEvent& recorded_;
  const std::string& where_;
};

}  // namespace

std::vector<std::string> RoundState::participant_names() const {
  std::vector<std::string> names;
  for (const Participant& participant : participants) names.push_back(participant.facility.str());
  return names;
}

plan::Done RunState::done() const {
  plan::Done done{0, initial_sha256, {}, adapted_sha256, completed};
  done.stop_rule_met = stop_rule.has_value();
  for (const auto& [name, why] : left) done.left.insert(name);
  const auto last = std::find_if(rounds.rbegin(), rounds.rend(),
                                 [](const auto& round) { return round.second.published; });
  if (last != rounds.rend()) {
    done.rounds_published = last->first;
    done.model_sha256 = last->second.model_sha256;
    for (const auto& [name, facility] : last->second.facilities)
      if (facility.accepted) done.accepted[name] = facility.accepted->attempt;
  }
  if (const auto next = rounds.find(done.rounds_published + 1); next != rounds.end())
    done.members = next->second.members;
  return done;
}

namespace {

bool apply(FacilityState& facility, int attempt, const Event& event, const std::string& where) {
  FacilityProjection projection(facility, attempt, where);
  return std::visit(
      [&](const auto& e) {
        if constexpr (requires { projection.take(e); }) {
          projection.take(e);
          return true;
        } else {
          return false;
        }
      },
      event);
}

std::string place_of(const RecordedEvent& recorded) {
  return "journal event " + std::to_string(recorded.seq) + " (" +
         std::string(kind_of(recorded.event)) + ")";
}

// The events of the run as a whole that change its unfinished rounds.
bool changes_rounds(const Event& event) {
  return std::holds_alternative<RunResumed>(event) ||
         std::holds_alternative<ConfigChanged>(event) ||
         std::holds_alternative<FacilityResumed>(event) ||
         std::holds_alternative<FacilityLeft>(event);
}

bool has_unconfirmed_cancellation(const RoundState& round) {
  return std::any_of(round.facilities.begin(), round.facilities.end(), [](const auto& each) {
    const Attempt* attempt = each.second.current();
    return attempt != nullptr && attempt->cancel_intended;
  });
}

}  // namespace

bool apply(FacilityState& facility, int attempt, const Event& event) {
  return apply(facility, attempt, event, std::string(kind_of(event)));
}

void apply(RunState& run_state, const RecordedEvent& recorded) {
  const std::string where = place_of(recorded);
  RunProjection projection(run_state, recorded, where);
  std::visit([&](const auto& event) { projection.take(event); }, recorded.event);
}

RunState replay(const std::vector<StoredEvent>& events) {
  RunState run_state;
  for (const StoredEvent& event : events) apply(run_state, decode(event));
  return run_state;
}

RunState replay(std::vector<StoredEvent>&& events) {
  RunState run_state;
  for (StoredEvent& event : events) apply(run_state, decode(std::exchange(event, {})));
  return run_state;
}

RunState read_newest(const std::filesystem::path& path, const NewestRounds& limits) {
  const std::string_view planned_kind = kind_of(RoundPlanned{});
  int rounds = 0;
  int64_t count = 0;
  const std::vector<StoredEvent> events = read_newest_events(path, [&](const StoredEvent& stored) {
    ++count;
    if (stored.kind == planned_kind) ++rounds;
    return rounds < 2 || (rounds < limits.rounds && count < limits.events);
  });
  RunState run_state;
  int first = 0;  // round in the state, with its facilities
  for (const StoredEvent& stored : events) {
    const RecordedEvent recorded = decode(stored);
    const int round = recorded.scope.round;
    const auto* planned = std::get_if<RoundPlanned>(&recorded.event);
    if (first == 0 && planned != nullptr) {
      first = round;
      if (first > 1)
        run_state.rounds[first - 1] = {.model_sha256 = planned->base_sha256, .published = true};
    }
    // Late events of older rounds.
    if (round > 0 && (first == 0 || round < first)) continue;
    apply(run_state, recorded);
  }
  return run_state;
}

RunHistory::RunHistory(const std::filesystem::path& path) {
  std::set<int> late;
  store_ = Store::open(path, [&](const StoredEvent& stored) { replay_stored(stored, late); });
  for (const int round : late) run_state_.rounds[round] = load(round, "");
  forget_old_rounds();
}

// `late` collects the forgotten rounds with further events, which load() applies in their order.
void RunHistory::replay_stored(const StoredEvent& stored, std::set<int>& late) {
  const RecordedEvent recorded = decode(stored);
  if (is_forgotten(recorded.scope.round))
    late.insert(recorded.scope.round);
  else
    apply(run_state_, recorded);
  note(recorded);
}

void RunHistory::record(const EventScope& scope, const Event& event) {
  const std::lock_guard writer(writer_);
  record_next(scope, event);
}

bool RunHistory::record_if(const EventScope& scope, const Event& event,
                           const std::function<bool(const Spending&)>& allows) {
  const std::lock_guard writer(writer_);
  if (!allows(spending())) return false;
  record_next(scope, event);
  return true;
}

void RunHistory::record_next(const EventScope& scope, const Event& event) {
  if (is_forgotten(scope.round)) {
    RoundState round = load(scope.round, "");
    const std::lock_guard lock(mutex_);
    run_state_.rounds[scope.round] = std::move(round);
  }
  // The new state comes from the stored bytes, as after a restart. No other thread changes
  // run_state_ before the lock.
  std::optional<RecordedEvent> recorded;
  Change change;
  store_->append(encode(scope, event), [&](const StoredEvent& stored) {
    recorded = decode(stored);
    change = change_by(*recorded);
  });
  const std::lock_guard lock(mutex_);
  take(*recorded, std::move(change));
  note(*recorded);
}

// Copies only the affected part: most events concern one facility in one round.
RunHistory::Change RunHistory::change_by(const RecordedEvent& recorded) const {
  Change change;
  const auto round = run_state_.rounds.find(recorded.scope.round);
  if (recorded.scope.facility && recorded.scope.round > 0) {
    FacilityState facility;
    if (round != run_state_.rounds.end()) {
      const auto known = round->second.facilities.find(*recorded.scope.facility);
      if (known != round->second.facilities.end()) facility = known->second;
    }
    if (apply(facility, recorded.scope.attempt, recorded.event, place_of(recorded))) {
      if (std::holds_alternative<UpdateAccepted>(recorded.event))
        facility.accepted->time_utc = recorded.time_utc;
      change.facility = std::move(facility);
      change.is_first_submission =
          std::holds_alternative<Submitted>(recorded.event) &&
          (round == run_state_.rounds.end() || round->second.first_submission_utc.empty());
      return change;
    }
  }
  change.run_state = run_state_;
  apply(*change.run_state, recorded);
  return change;
}

void RunHistory::take(const RecordedEvent& recorded, Change change) {
  if (change.run_state) {
    run_state_ = std::move(*change.run_state);
    return;
  }
  RoundState& round = run_state_.rounds[recorded.scope.round];
  round.facilities[*recorded.scope.facility] = std::move(*change.facility);
  if (change.is_first_submission) round.first_submission_utc = recorded.time_utc;
}

void RunHistory::note(const RecordedEvent& recorded) {
  spending_.add(recorded);
  progress_.add(recorded, [this] { return spending_.node_seconds(); });
  if (recorded.scope.round == 0) return;
  StoredRound& stored = stored_rounds_[recorded.scope.round];
  if (stored.first_seq == 0) stored.first_seq = recorded.seq;
  stored.last_seq = recorded.seq;
  if (std::holds_alternative<Published>(recorded.event)) forget_old_rounds();
}

void RunHistory::forget_old_rounds() {
  const int newest = run_state_.done().rounds_published;
  for (auto it = run_state_.rounds.begin(); it != run_state_.rounds.end();) {
    const auto& [number, round] = *it;
    const bool old = number < newest - 1 && round.published;
    if (!old || has_unconfirmed_cancellation(round)) {
      ++it;
      continue;
    }
    stored_rounds_[number].model_sha256 = round.model_sha256;
    it = run_state_.rounds.erase(it);
  }
}

Spending RunHistory::spending() const {
  const std::lock_guard lock(mutex_);
  return spending_;
}

Progress RunHistory::progress() const {
  const std::lock_guard lock(mutex_);
  return progress_;
}

bool RunHistory::is_forgotten(int round) const {
  return !run_state_.rounds.contains(round) && stored_rounds_.contains(round);
}

// The round with all facilities or one (empty: all), from the journal.
RoundState RunHistory::load(int number, const std::string& facility) const {
  StoredRound stored;
  RunState run_state;
  {
    const std::lock_guard lock(mutex_);
    stored = stored_rounds_.at(number);
    run_state.initial_sha256 = run_state_.initial_sha256;
  }
  if (number > 1)
    run_state.rounds[number - 1] = {.model_sha256 = model_sha256(number - 1), .published = true};
  for (const StoredEvent& event : store_->events({.first_seq = stored.first_seq,
                                  .last_seq = stored.last_seq,
                                  .round = number,
                                  .facility = facility})) {
    const RecordedEvent recorded = decode(event);
    if (recorded.scope.round == number || changes_rounds(recorded.event))
      apply(run_state, recorded);
  }
  return std::move(run_state.rounds[number]);
}

RunState RunHistory::state() const {
  const std::lock_guard lock(mutex_);
  return run_state_;
}

std::filesystem::path RunHistory::work_name(const std::filesystem::path& path) const {
  return history::work_name(path, epoch());
}

void RunHistory::write_file(const std::filesystem::path& path, std::string_view content) {
  write_file(path, content, path);
}

void RunHistory::write_file(const std::filesystem::path& path, std::string_view content,
                            const std::filesystem::path& work_base) {
  // A take-over would rename the first of two epochs in a name.
  const bool is_work_name = epoch_of(work_base.filename().string()) == epoch();
  TempFile temp(work_base, (is_work_name ? "" : work_suffix(epoch())) + ".tmp");
  write_all(temp.fd(), std::as_bytes(std::span(content.data(), content.size())), temp.path());
  temp.sync();
  check_writer();
  temp.publish(path);
}

checkpoint::FileWriter RunHistory::file_writer() {
  return [this](const std::filesystem::path& path, std::string_view content) {
    const bool lies_in_folder = path.filename() == checkpoint::kManifestName;
    write_file(path, content,
               lies_in_folder ? path.parent_path().string() + "." + path.filename().string()
                              : path.string());
  };
}

void RunHistory::publish_folder(const std::filesystem::path& path) {
  check_writer();
  replace_folder(work_name(path), path);
}

plan::Done RunHistory::done() const {
  const std::lock_guard lock(mutex_);
  return run_state_.done();
}

RoundState RunHistory::round(int number) const {
  {
    const std::lock_guard lock(mutex_);
    const auto it = run_state_.rounds.find(number);
    if (it != run_state_.rounds.end()) return it->second;
    if (!stored_rounds_.contains(number)) return {};
  }
  return load(number, "");
}

std::optional<std::string> RunHistory::paused(const FacilityName& name) const {
  const std::lock_guard lock(mutex_);
  const auto it = run_state_.paused.find(name);
  if (it == run_state_.paused.end()) return std::nullopt;
  return it->second;
}

std::optional<std::string> RunHistory::departed(int round, const FacilityName& name) const {
  const std::lock_guard lock(mutex_);
  const auto it = run_state_.rounds.find(round);
  if (it == run_state_.rounds.end()) return std::nullopt;
  const auto reason = it->second.departed.find(name);
  return reason == it->second.departed.end() ? std::nullopt : std::optional(reason->second);
}

FacilityState RunHistory::facility(int number, const FacilityName& name) const {
  const auto of = [&](const RoundState& round) {
    const auto it = round.facilities.find(name);
    return it == round.facilities.end() ? FacilityState{} : it->second;
  };
  {
    const std::lock_guard lock(mutex_);
    const auto it = run_state_.rounds.find(number);
    if (it != run_state_.rounds.end()) return of(it->second);
    if (!stored_rounds_.contains(number)) return {};
  }
  return of(load(number, name.str()));
}

std::string RunHistory::model_sha256(int round) const {
  const std::lock_guard lock(mutex_);
  if (round == 0) return run_state_.initial_sha256;
  const auto it = run_state_.rounds.find(round);
  if (it != run_state_.rounds.end()) return it->second.model_sha256;
  const auto stored = stored_rounds_.find(round);
  return stored == stored_rounds_.end() ? "" : stored->second.model_sha256;
}

std::vector<UnconfirmedCancellation> RunHistory::unconfirmed_cancellations(const FacilityName& name,
                                                                           int before) const {
  std::vector<UnconfirmedCancellation> all;
  const std::lock_guard lock(mutex_);
  for (const auto& [number, round] : run_state_.rounds) {
    const auto state = round.facilities.find(name);
    if (number >= before || state == round.facilities.end()) continue;
    const Attempt* attempt = state->second.current();
    if (attempt != nullptr && attempt->cancel_intended) all.push_back({number, attempt->job_id});
  }
  return all;
}

std::vector<Acceptance> RunHistory::acceptances(int round) const {
  const std::lock_guard lock(mutex_);
  std::vector<Acceptance> all;
  const auto it = run_state_.rounds.find(round);
  if (it == run_state_.rounds.end()) return all;
  for (const auto& [name, facility] : it->second.facilities)
    if (facility.accepted)
      all.push_back({name, facility.accepted->attempt, facility.accepted->time_utc});
  return all;
}

}  // namespace xffl::history
