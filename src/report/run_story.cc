#include "xffl/report/run_story.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>
#include <utility>
#include <variant>

#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/base/log.h"
#include "xffl/facility/machine.h"
#include "xffl/history/spending.h"
#include "xffl/remote/ssh.h"

namespace xffl::report {
namespace {

using std::chrono::nanoseconds;

Time time_of(const history::RecordedEvent& recorded) {
  const std::optional<Time> time = parse_utc(recorded.time_utc);
  if (!time)
    throw Error(ErrorKind::kCorrupt,
                "event " + std::to_string(recorded.seq) +
                    " of the journal has no time: " + log::printable(recorded.time_utc, 80));
  return *time;
}

// Folds the events, in their order. One handler per kind that the story shows.
class Folding {
 public:
  explicit Folding(RunStory& story) : story_(story) {}

  void add(const history::RecordedEvent& recorded) {
    scope_ = recorded.scope;
    seq_ = recorded.seq;
    time_ = time_of(recorded);
    if (story_.num_events == 0) story_.first_event = time_;
    spending_.add(recorded);
    std::visit([this](const auto& event) { on(event); }, recorded.event);
    story_.last_event = time_;
    story_.num_events = recorded.seq;
  }

  // The consequences of incidents, known after the last event.
  void finish() {
    for (size_t i = 0; i < story_.incidents.size(); ++i)
      if (Incident& incident = story_.incidents[i]; incident.followed.empty())
        incident.followed = consequence(incident);
  }

 private:
  template <class Other>
  void on(const Other&) {}

  void on(const history::RunCreated& event) {
    story_.project = event.project;
    story_.config_sha256 = event.config_sha256;
    begin_coordinator();
  }
  void on(const history::ConfigChanged& event) { story_.config_sha256 = event.config_sha256; }
  void on(const history::ModelImported& event) { story_.model_sha256 = event.model_sha256; }
  void on(const history::RunResumed&) {
    if (!story_.coordinators.empty() && story_.coordinators.back().end.empty()) {
      CoordinatorStory& last = story_.coordinators.back();
      last.end = "no reason on record: killed, or the machine crashed";
      Incident& incident = report("coordinator ended", last.end);
      incident.time = story_.last_event;
      incident.followed = "continued at " + format_utc(time_);
    }
    for (Incident& incident : story_.incidents)
      if (incident.kind == "run stopped" && incident.followed.empty())
        incident.followed = "continued at " + format_utc(time_);
    // A new coordinator tries the missing facilities again, unless the mean has been decided.
    for (auto& [number, round] : story_.rounds)
      if (!round.frozen) round.missing.clear();
    begin_coordinator();
  }
  void on(const history::RunStopped& event) {
    end_coordinator("stopped (" + event.kind + ")");
    report("run stopped", event.reason);
  }
  void on(const history::RunCompleted& event) {
    end_coordinator("the run is complete");
    story_.model_sha256 = event.model_sha256;
  }
  void on(const history::StopRuleMet& event) { story_.stop_rule = event; }
  void on(const history::RunCancelled&) { end_coordinator("the run was cancelled"); }

  void on(const history::FacilityPaused& event) { report("facility paused", event.reason); }
  void on(const history::FacilityResumed&) {
    for (Incident& incident : story_.incidents)
      if (incident.kind == "facility paused" && incident.facility == scope_.facility &&
          incident.followed.empty())
        incident.followed = "resumed at " + format_utc(time_);
  }
  void on(const history::FacilityLeft& event) { report("facility left", event.reason); }
  void on(const history::FacilityJoined&) {
    for (Incident& incident : story_.incidents)
      if (incident.kind == "facility left" && incident.facility == scope_.facility &&
          incident.followed.empty())
        incident.followed = "joined again at " + format_utc(time_);
  }

  void on(const history::RoundPlanned& event) {
    RoundStory& round = this->round();
    round.planned = time_;
    round.members = event.facilities;
    round.evaluates = event.evaluates;
    for (const FacilityName& name : event.facilities)
      if (std::find(story_.facilities.begin(), story_.facilities.end(), name) ==
          story_.facilities.end())
        story_.facilities.push_back(name);
  }
  void on(const history::ParticipantsFrozen& event) {
    RoundStory& round = this->round();
    averaged_ = event.facilities;
    round.frozen = time_;
    std::optional<Time> last;
    for (const AttemptStory& attempt : story_.attempts)
      if (attempt.round == scope_.round && attempt.outcome == Outcome::kAccepted &&
          (!last || *attempt.ended >= *last)) {
        last = attempt.ended;
        round.last = attempt.facility;
      }
  }
  void on(const history::Aggregated& event) {
    round().aggregated = time_;
    round().model_sha256 = event.model_sha256;
    round().master_sha256 = event.master_sha256;
    if (event.cosines.size() != averaged_.size()) return;  // not measured
    for (AttemptStory& attempt : story_.attempts) {
      if (attempt.round != scope_.round || attempt.outcome != Outcome::kAccepted) continue;
      const auto at = std::find(averaged_.begin(), averaged_.end(), attempt.facility);
      if (at != averaged_.end())
        attempt.cosine = event.cosines[static_cast<size_t>(at - averaged_.begin())];
    }
  }
  void on(const history::Published& event) {
    round().published = time_;
    round().published_seq = seq_;
    for (const FacilityName& name : story_.facilities)
      round().node_seconds[name] = spending_.node_seconds(name);
    story_.model_sha256 = event.model_sha256;
    story_.rounds_published = std::max(story_.rounds_published, scope_.round);
  }
  void on(const history::FacilityMissing& event) {
    if (scope_.facility) round().missing[*scope_.facility] = event.reason;
    report("facility missing", event.reason);
  }

  void on(const history::AttemptOpened&) {
    if (!scope_.facility) return;
    AttemptStory attempt;
    attempt.round = scope_.round;
    attempt.facility = *scope_.facility;
    attempt.number = scope_.attempt;
    attempt.opened = time_;
    newest_[{scope_.round, *scope_.facility, scope_.attempt}] = story_.attempts.size();
    story_.attempts.push_back(std::move(attempt));
  }
  void on(const history::Pushed& event) {
    AttemptStory* attempt = this->attempt();
    if (attempt == nullptr) return;
    attempt->pushed = time_;
    attempt->moved_bytes = event.moved_bytes;
    attempt->whole_bytes = event.whole_bytes;
    attempt->push_seconds = event.seconds;
  }
  void on(const history::Submitted& event) {
    AttemptStory* attempt = this->attempt();
    if (attempt == nullptr) return;
    attempt->submitted = time_;
    attempt->job_id = event.job_id.str();
  }
  void on(const history::AttemptFailed& event) {
    if (AttemptStory* attempt = this->attempt()) {
      attempt->ended = time_;
      attempt->outcome = Outcome::kFailed;
      attempt->reason = event.reason;
      attempt->usage = event.usage;
    }
    report("attempt failed", event.reason);
  }
  void on(const history::UpdateAccepted& event) {
    AttemptStory* attempt = this->attempt();
    if (attempt == nullptr) return;
    attempt->ended = time_;
    attempt->accepted_seq = seq_;
    attempt->outcome = Outcome::kAccepted;
    attempt->report = event.report;
    if (event.change > 0) attempt->change = event.change;
    attempt->usage = event.usage;
    round().missing.erase(attempt->facility);
  }
  void on(const history::UpdateLost& event) {
    if (AttemptStory* attempt = this->attempt()) {
      attempt->outcome = Outcome::kLost;
      attempt->reason = event.reason;
    }
    report("update lost", event.reason);
  }

  RoundStory& round() {
    RoundStory& round = story_.rounds[scope_.round];
    round.number = scope_.round;
    return round;
  }
  AttemptStory* attempt() {
    if (!scope_.facility) return nullptr;
    const auto found = newest_.find({scope_.round, *scope_.facility, scope_.attempt});
    return found == newest_.end() ? nullptr : &story_.attempts[found->second];
  }
  Incident& report(std::string kind, std::string reason) {
    const AttemptStory* own = attempt();
    story_.incidents.push_back({time_, scope_.round, scope_.facility, scope_.attempt,
                                own == nullptr ? "" : own->job_id, std::move(kind),
                                std::move(reason), ""});
    return story_.incidents.back();
  }
  void begin_coordinator() { story_.coordinators.push_back({time_, {}, ""}); }
  void end_coordinator(std::string reason) {
    if (story_.coordinators.empty()) return;
    story_.coordinators.back().ended = time_;
    story_.coordinators.back().end = std::move(reason);
  }

  std::string consequence(const Incident& incident) const {
    if (!incident.facility || incident.round == 0) return "";
    std::string followed;
    for (const AttemptStory& attempt : story_.attempts)
      if (attempt.round == incident.round && attempt.facility == *incident.facility &&
          attempt.number > incident.attempt && *attempt.opened >= incident.time) {
        followed = "attempt " + std::to_string(attempt.number) + ": " +
                   std::string(name_of(attempt.outcome));
        break;
      }
    const auto round = story_.rounds.find(incident.round);
    if (round == story_.rounds.end()) return followed;
    const bool is_missing = round->second.missing.contains(*incident.facility);
    if (followed.empty() && is_missing)
      followed = round->second.published ? "the round was averaged without the facility"
                                         : "the facility is missing in the round";
    return followed;
  }

  RunStory& story_;
  history::Spending spending_;
  history::EventScope scope_;
  int64_t seq_ = 0;
  Time time_;
  std::vector<FacilityName> averaged_;                           // of the newest ParticipantsFrozen
  std::map<std::tuple<int, FacilityName, int>, size_t> newest_;  // indices into attempts
};

// A time of the facility's clock, by this machine's clock.
Time local_time(int64_t seconds, const job::JobUsage& usage) {
  const std::chrono::duration<double> offset(usage.clock_offset.value_or(0));
  return Time(std::chrono::seconds(seconds)) - std::chrono::duration_cast<Time::duration>(offset);
}

// Appends the spans of an attempt, one after the other. A moment before its predecessor counts as
// its predecessor, and one after the attempt's end as the end.
class Spans {
 public:
  // `clock_error`: of the difference between the facility's clock and this machine's, in seconds.
  Spans(AttemptStory& attempt, Time end, double clock_error, int& anomalies)
      : attempt_(attempt),
        at_(*attempt.opened),
        last_of_job_(at_),
        end_(std::max(end, at_)),
        // The job's times are whole seconds.
        tolerance_(std::chrono::duration_cast<Time::duration>(
            std::chrono::duration<double>(1 + clock_error))),
        anomalies_(anomalies) {}

  // A moment by this machine's clock.
  void until(Phase phase, Time moment) {
    moment = std::clamp(moment, at_, end_);
    if (moment > at_) attempt_.spans.push_back({phase, at_, moment});
    at_ = moment;
  }
  // A moment that the job recorded. On a loaded machine it may lie before the submission, which
  // the coordinator records when the scheduler's answer has arrived.
  void until_in_job(Phase phase, Time moment) {
    if (moment + tolerance_ < last_of_job_ || moment > end_ + tolerance_) ++anomalies_;
    last_of_job_ = std::max(last_of_job_, moment);
    until(phase, moment);
  }
  Time end() const { return end_; }

 private:
  AttemptStory& attempt_;
  Time at_;
  Time last_of_job_;  // the job's last moment; before the first one: the attempt's opening
  const Time end_;
  const Time::duration tolerance_;
  int& anomalies_;
};

void add_spans(AttemptStory& attempt, const RoundStory& round, Time now, int& anomalies) {
  const Time end = attempt.ended.value_or(now);
  const double clock_error = attempt.usage ? attempt.usage->clock_error.value_or(0) : 0;
  Spans spans(attempt, end, clock_error, anomalies);
  if (attempt.outcome == Outcome::kFailed || attempt.outcome == Outcome::kLost) {
    spans.until(Phase::kLost, spans.end());
    return;
  }
  spans.until(Phase::kSending, attempt.submitted.value_or(spans.end()));
  if (!attempt.submitted) return;
  if (attempt.usage && !attempt.usage->starts.empty()) {
    const job::JobUsage& usage = *attempt.usage;
    // A requeued job waits from its submission to its last start.
    const job::JobStart& start = usage.starts.back();
    spans.until_in_job(Phase::kQueue, local_time(start.start, usage));
    if (start.train) spans.until_in_job(Phase::kLoading, local_time(*start.train, usage));
    if (start.trained)
      spans.until_in_job(Phase::kTraining, local_time(*start.trained, usage));
    else if (start.train && attempt.report)  // the coordinator saw the report before the mark
      spans.until_in_job(Phase::kTraining,
                         local_time(*start.train, usage) +
                             std::chrono::duration_cast<Time::duration>(
                                 std::chrono::duration<double>(attempt.report->total_seconds)));
    spans.until(Phase::kFetching, spans.end());
  } else {
    spans.until(Phase::kJob, spans.end());
  }
  if (attempt.outcome == Outcome::kAccepted && round.frozen && *round.frozen > spans.end())
    attempt.spans.push_back({Phase::kWaiting, spans.end(), *round.frozen});
}

usage::Amount node_seconds_of(const usage::Row& row) {
  const std::optional<double> seconds = row.node_seconds();
  return {seconds.value_or(0), seconds ? 0 : 1};
}

// The next start of the row's job for the same attempt; null: the row is the last one.
const usage::Row* next_start(const std::vector<usage::Row>& rows, size_t at) {
  const usage::Row& row = rows[at];
  for (size_t i = at + 1; i < rows.size(); ++i)
    if (rows[i].facility == row.facility && rows[i].round == row.round &&
        rows[i].attempt == row.attempt && rows[i].job == row.job &&
        rows[i].outcome != usage::Outcome::kIdle)
      return &rows[i];
  return nullptr;
}

// No event tells of a requeue: the scheduler makes it without the coordinator.
Incident requeue_of(const usage::Row& row, const usage::Row& next, Time newest) {
  Incident incident;
  incident.time = row.end.value_or(next.start.value_or(newest));
  incident.round = row.round;
  incident.facility = row.facility;
  incident.attempt = row.attempt;
  incident.job_id = row.job.str();
  incident.kind = "job requeued";
  incident.reason = "the scheduler ended start " + std::to_string(row.restart + 1) +
                    " of the job and queued it again";
  incident.followed = next.start ? "started again at " + format_utc(*next.start) : "started again";
  incident.lost = node_seconds_of(row);
  return incident;
}

// A failed attempt whose checkpoint was continued has lost nothing.
void add_requeues_and_lost_hours(RunStory& story) {
  std::map<std::tuple<int, FacilityName, int>, usage::Amount> lost;
  std::vector<Incident> requeues;
  for (size_t i = 0; i < story.ledger.rows.size(); ++i) {
    const usage::Row& row = story.ledger.rows[i];
    if (row.outcome != usage::Outcome::kLost) continue;
    if (const usage::Row* next = next_start(story.ledger.rows, i)) {
      requeues.push_back(requeue_of(row, *next, story.last_event));
      continue;
    }
    usage::Amount& amount = lost[{row.round, row.facility, row.attempt}];
    const usage::Amount own = node_seconds_of(row);
    amount.seconds += own.seconds;
    amount.unknown += own.unknown;
  }
  for (Incident& incident : story.incidents) {
    if (!incident.facility || (incident.kind != "attempt failed" && incident.kind != "update lost"))
      continue;
    const auto found = lost.find({incident.round, *incident.facility, incident.attempt});
    if (found != lost.end()) incident.lost = found->second;
  }
  story.incidents.insert(story.incidents.end(), requeues.begin(), requeues.end());
  std::stable_sort(story.incidents.begin(), story.incidents.end(),
                   [](const Incident& a, const Incident& b) { return a.time < b.time; });
}

bool has_ended(const RunStory& story) {
  return story.state == "completed" || story.state == "cancelled";
}

void add_stop(RunStory& story, const history::RunState& state) {
  if (story.state != "stopped") return;
  const std::string command = "xffl run --run " + story.run;
  if (state.stopped)
    story.needs.push_back({"The run stopped at " + state.stopped->time_utc + " (" +
                               state.stopped->kind + "): " + state.stopped->reason,
                           command});
  else
    story.needs.push_back(
        {"No coordinator holds the run, and the last one left no reason: it was killed, or the "
         "machine crashed.",
         command});
}

// The command, without the facility's name, that an activity asks for; empty: none.
std::string command_for(const std::string& activity) {
  if (activity.starts_with(facility::kNeedsUser)) return "xffl doctor";
  if (!activity.starts_with(facility::kAuthPause)) return "";
  // An activity may be cut off before the command in its text.
  const bool is_untrusted = activity.find(remote::kHostKeyChanged) != std::string::npos ||
                            activity.find("xffl trust") != std::string::npos;
  return is_untrusted ? "xffl trust" : "xffl login";
}

void add_needs(RunStory& story, const history::RunState& state, const StoryContext& context) {
  if (has_ended(story)) return;
  add_stop(story, state);
  if (const std::string silence =
          status::silence_text(context.coordinator, context.last_sign, context.now);
      !silence.empty())
    story.needs.push_back({silence, ""});
  for (const auto& [name, reason] : state.paused)
    story.needs.push_back({name.str() + " is PAUSED: " + reason, "xffl resume " + name.str()});
  for (const auto& [name, credential] : context.credentials)
    story.needs.push_back({"The certificate of " + name.str() +
                               (credential.ends <= context.now ? " expired at " : " ends at ") +
                               format_utc(credential.ends) + ".",
                           credential.renew});
  for (const auto& [name, activity] : story.live)
    if (const std::string command = command_for(activity.activity); !command.empty())
      story.needs.push_back({name.str() + ": " + activity.activity, command + " " + name.str()});
  if (story.rounds.empty()) return;
  const RoundStory& newest = story.rounds.rbegin()->second;
  if (newest.published) return;
  for (const auto& [name, reason] : newest.missing)
    story.needs.push_back(
        {name.str() + " is missing in round " + std::to_string(newest.number) + ": " + reason,
         "xffl resume " + name.str()});
}

// Absent unless the value is a number; JSON has finite numbers only.
std::optional<double> number_in(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

std::string without_digits(std::string_view text) {
  std::string shown;
  for (const char c : text)
    if (c < '0' || c > '9')
      shown += c;
    else if (shown.empty() || shown.back() != '#')
      shown += '#';
  return shown;
}

}  // namespace

std::string_view name_of(Phase phase) {
  switch (phase) {
    case Phase::kSending:
      return "sending and submitting";
    case Phase::kQueue:
      return "queue";
    case Phase::kLoading:
      return "start of the job";
    case Phase::kTraining:
      return "training and measuring";
    case Phase::kFetching:
      return "checking and fetching";
    case Phase::kJob:
      return "queue and job, not told apart";
    case Phase::kLost:
      return "lost attempts";
    case Phase::kWaiting:
      return "waiting for other facilities";
  }
  return "";
}

std::string_view name_of(Outcome outcome) {
  switch (outcome) {
    case Outcome::kOpen:
      return "in progress";
    case Outcome::kAccepted:
      return "accepted";
    case Outcome::kFailed:
      return "failed";
    case Outcome::kLost:
      return "update lost";
  }
  return "";
}

nanoseconds RunStory::elapsed() const {
  const Time end = state == "running" ? std::max(written, last_event) : last_event;
  return std::max(nanoseconds(0), nanoseconds(end - first_event));
}

RunStory make_story(const std::vector<history::StoredEvent>& events, const StoryContext& context) {
  const history::RunState state = history::replay(events);
  RunStory story;
  story.run = context.run;
  story.version = context.version;
  story.coordinator = context.coordinator;
  story.rounds_planned = context.rounds_planned;
  story.written = context.now;
  story.live = context.live;
  story.state = state.cancelled               ? "cancelled"
                : state.completed             ? "completed"
                : context.coordinator.empty() ? "stopped"
                                              : "running";
  Folding folding(story);
  for (const history::StoredEvent& event : events) folding.add(history::decode(event));
  folding.finish();
  std::sort(story.facilities.begin(), story.facilities.end());
  for (auto& [number, round] : story.rounds)
    if (const auto found = state.rounds.find(number); found != state.rounds.end())
      round.participants = found->second.participants;
  if (!story.coordinators.empty() && story.coordinators.back().end.empty() &&
      story.coordinator.empty())
    story.coordinators.back().end = "no reason on record: killed, or the machine crashed";
  const Time now =
      story.state == "running" ? std::max(story.written, story.last_event) : story.last_event;
  for (AttemptStory& attempt : story.attempts)
    add_spans(attempt, story.rounds[attempt.round], now, story.clock_anomalies);
  story.losses = status::global_losses(state);
  story.ledger = usage::make_ledger(events, context.gpus, context.accounting);
  add_requeues_and_lost_hours(story);
  add_needs(story, state, context);
  return story;
}

namespace {

// A check of another journal, as of a run folder that was replaced, is left out.
void read_checks(const history::RunFolder& folder, const std::vector<history::StoredEvent>& events,
                 RunStory& story) {
  try {
    story.checks = history::read_kept_checks(folder.verification());
  } catch (const Error& error) {
    story.notes.push_back("the result of `xffl verify` was not read: " + std::string(error.what()));
  }
  const auto of_another_journal = [&](const history::KeptCheck& check) {
    if (check.events == 0) return false;
    return check.events > static_cast<int64_t>(events.size()) ||
           events[static_cast<size_t>(check.events - 1)].time_utc != check.last_event_at;
  };
  if (std::erase_if(story.checks, of_another_journal) > 0)
    story.notes.push_back(
        "verification.json is of another journal than journal.db: run `xffl verify` again");
}

}  // namespace

int RunStory::verified_round() const {
  int64_t covered = -1;  // events
  for (const history::KeptCheck& check : checks)
    if (check.result != "not checked")
      covered = covered < 0 ? check.events : std::min(covered, check.events);
  if (covered < 0) return -1;
  int newest = 0;
  for (const auto& [number, round] : rounds)
    if (round.published_seq > 0 && round.published_seq <= covered) newest = number;
  return newest;
}

RunStory collect_story(const history::RunFolder& folder, StoryContext context) {
  if (!std::filesystem::exists(folder.journal()))
    throw Error(ErrorKind::kNotFound,
                "no run exists in " + folder.path().string() + ": start one with `xffl run`");
  context.run = folder.run().str();
  context.coordinator = history::lock_holder(folder.journal());
  if (!context.coordinator.empty()) {
    context.live = history::read_activities(folder.live());
    context.last_sign = history::last_sign_of_life(folder.live());
  }
  std::string without_accounting;
  try {
    context.accounting = usage::read_accounting(folder.accounting());
  } catch (const Error& error) {
    without_accounting = error.what();
  }
  const std::vector<history::StoredEvent> events = history::read_events(folder.journal());
  RunStory story = make_story(events, context);
  read_checks(folder, events, story);
  if (!without_accounting.empty())
    story.notes.push_back("the accounting was not read: " + without_accounting);
  uint64_t left = kMaxMetricsBytes;
  int unread = 0;
  std::string problem;
  for (auto it = story.attempts.rbegin(); it != story.attempts.rend(); ++it) {
    if (it->outcome != Outcome::kAccepted || !it->report || it->report->steps == 0) continue;
    const std::filesystem::path path = folder.metrics(it->round, it->facility, it->number);
    try {
      const std::string text = read_metrics(path, left);
      left -= text.size();
      std::vector<StepLoss>& losses = story.step_losses[it->facility];
      const std::vector<StepLoss> own = parse_metrics(text);
      losses.insert(losses.end(), own.begin(), own.end());
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::kNotFound) continue;  // of an earlier release, or removed
      ++unread;
      problem = error.what();
    }
  }
  if (unread > 0)
    story.notes.push_back(std::to_string(unread) + " files of metrics were not read: " + problem);
  for (auto& [name, losses] : story.step_losses)
    std::stable_sort(losses.begin(), losses.end(),
                     [](const StepLoss& a, const StepLoss& b) { return a.step < b.step; });
  return story;
}

std::string read_metrics(const std::filesystem::path& path, uint64_t max_bytes) {
  const RegularFile file = open_regular(path);
  if (file.size_bytes > max_bytes)
    throw Error(ErrorKind::kRejected,
                path.string() + " has " + std::to_string(file.size_bytes) +
                    " bytes; at most 64 MiB of metrics are read, the newest rounds first");
  std::string text(file.size_bytes, '\0');
  text.resize(read_at(file.fd.get(), 0, std::as_writable_bytes(std::span(text)), path));
  return text;
}

std::vector<StepLoss> parse_metrics(std::string_view text) {
  constexpr size_t kMaxLine = 1 << 16;
  std::vector<StepLoss> losses;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    if (end == std::string_view::npos) break;  // a torn line
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end + 1);
    if (line.size() > kMaxLine || line.find("\"loss\"") == std::string_view::npos) continue;
    try {
      const Json json = parse_json(line, "metrics");
      JsonObject object(json, "metrics");
      const StepLoss loss{object.integer("step", 0, int64_t{1} << 53), object.number("loss"),
                          number_in(json, "lr"), number_in(json, "grad_norm"),
                          number_in(json, "tokens_per_second")};
      if (std::abs(loss.loss) < 1e30) losses.push_back(loss);
    } catch (const Error&) {  // a line of another program
    }
  }
  return losses;
}

std::map<Phase, nanoseconds> time_by_phase(const RunStory& story, const FacilityName& facility) {
  std::map<Phase, nanoseconds> times;
  for (const AttemptStory& attempt : story.attempts)
    if (attempt.facility == facility)
      for (const Span& span : attempt.spans) times[span.phase] += span.end - span.begin;
  return times;
}

std::vector<MeanLoss> mean_losses(const RunStory& story) {
  std::set<std::pair<FacilityName, std::string>> sets;
  std::map<int, std::vector<const status::GlobalLoss*>> rounds;
  for (const status::GlobalLoss& loss : story.losses) {
    sets.insert({loss.facility, loss.set});
    rounds[loss.round].push_back(&loss);
  }
  std::vector<MeanLoss> means;
  for (const auto& [round, losses] : rounds) {
    if (losses.size() != sets.size()) continue;
    double sum = 0, tokens = 0;
    for (const status::GlobalLoss* loss : losses) {
      sum += loss->nll * static_cast<double>(loss->tokens);
      tokens += static_cast<double>(loss->tokens);
    }
    if (tokens > 0) means.push_back({round, sum / tokens});
  }
  return means;
}

std::vector<IncidentGroup> grouped(const std::vector<Incident>& incidents) {
  std::map<std::pair<std::string, std::string>, size_t> known;
  std::vector<IncidentGroup> groups;
  std::vector<std::set<FacilityName>> facilities;
  for (const Incident& incident : incidents) {
    const auto [found, is_new] =
        known.try_emplace({incident.kind, without_digits(incident.reason)}, groups.size());
    if (is_new) {
      groups.push_back({incident.kind, incident.reason, 0, {}});
      facilities.emplace_back();
    }
    IncidentGroup& group = groups[found->second];
    ++group.count;
    if (incident.facility) facilities[found->second].insert(*incident.facility);
    if (incident.lost) {
      if (!group.lost) group.lost.emplace();
      group.lost->seconds += incident.lost->seconds;
      group.lost->unknown += incident.lost->unknown;
    }
  }
  for (size_t i = 0; i < groups.size(); ++i)
    groups[i].facilities.assign(facilities[i].begin(), facilities[i].end());
  std::stable_sort(
      groups.begin(), groups.end(),
      [](const IncidentGroup& a, const IncidentGroup& b) { return a.count > b.count; });
  return groups;
}

}  // namespace xffl::report
