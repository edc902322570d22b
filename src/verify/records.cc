// The checks of the journal and of the small files that it names.
#include <algorithm>
#include <cmath>

#include "recorded_run.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/base/sha256.h"
#include "xffl/config/load.h"
#include "xffl/facility/weights.h"
#include "xffl/history/events.h"
#include "xffl/job/job_spec.h"
#include "xffl/plan/attempt_nonce.h"

namespace xffl::verify {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kMaxConfigBytes = 4u << 20;
constexpr uint64_t kMaxScriptBytes = 8u << 20;
constexpr uint64_t kMaxJobBytes = 8u << 20;
// As at the resumption of a round: the last bits of a capped weight depend on the compiler.
constexpr double kWeightTolerance = 1e-9;

// "event 12 (published)"
template <class Event>
std::string event_name(int64_t seq) {
  return "event " + std::to_string(seq) + " (" + std::string(history::kind_of(Event{})) + ")";
}

// The shortest text that reads back as the same number.
std::string text_of(double number) { return Json(number).dump(); }

job::JobKey key_of(const RecordedRun& run, int round, const FacilityName& facility, int attempt) {
  return {run.state.project,
          run.state.identity->run.str(),
          round,
          facility.str(),
          attempt,
          plan::attempt_nonce(*run.state.identity, round, facility, attempt)};
}

std::string text_of(const job::JobKey& key) { return key.name() + " with nonce " + key.nonce; }

// The model that a job of the round reports as its input.
std::string input_sha256(const RecordedRun& run, int round) {
  return run.state.adapted_sha256.empty() ? run.global_sha256(round - 1) : run.state.adapted_sha256;
}

// Calls body(round, accepted) for each accepted update and evaluation.
template <class Body>
void for_each_accepted(const RecordedRun& run, const Body& body) {
  for (const auto& [number, round] : run.state.rounds)
    for (const auto& [name, facility] : round.facilities)
      if (facility.accepted) body(number, *facility.accepted);
}

void check_nonces(const RecordedRun& run, std::vector<Check>& checks) {
  Findings findings(checks, "nonces", "each attempt's nonce follows from the run's secret");
  for (const OpenedAttempt& opened : run.attempts) {
    const std::string subject = event_name<history::AttemptOpened>(opened.seq);
    if (opened.nonce.empty())
      findings.skip("an earlier release recorded no nonce", subject);
    else
      findings.compare(
          subject, opened.nonce,
          plan::attempt_nonce(*run.state.identity, opened.round, opened.facility, opened.attempt));
  }
}

void check_report(const RecordedRun& run, int round, const history::Accepted& accepted,
                  Findings& findings) {
  const std::string subject =
      event_name<history::UpdateAccepted>(run.rounds.at(round).accepted.at(accepted.facility));
  const job::JobReport& report = accepted.report;
  const job::JobKey key = key_of(run, round, accepted.facility, accepted.attempt);
  if (!(report.key == key))
    return findings.fail(
        subject, "the report answers " + text_of(report.key) + ", expected " + text_of(key));
  if (report.base_model_sha256 != input_sha256(run, round))
    return findings.fail(subject, "the report names the input model " + report.base_model_sha256 +
                                      ", expected " + input_sha256(run, round));
  findings.compare(subject, accepted.update_sha256, report.update_sha256);
}

void check_archived_report(const RecordedRun& run, int round, const history::Accepted& accepted,
                           Findings& findings) {
  const fs::path path = run.folder.facility(round, accepted.facility) / "report.json";
  const std::string subject = run.name_of(path);
  findings.guard(subject, [&] {
    if (job::read_job_report(path) == accepted.report)
      findings.pass();
    else
      findings.fail(subject, "it differs from the report in the journal, " +
                                 event_name<history::UpdateAccepted>(
                                     run.rounds.at(round).accepted.at(accepted.facility)));
  });
}

// The job of a run that an earlier release began.
bool is_of_another_release(const fs::path& job_json) {
  const Json json = parse_json(read_file(job_json, kMaxJobBytes), job_json.string());
  const auto version = json.is_object() ? json.find("version") : json.end();
  return version != json.end() && version->is_number_integer() &&
         (*version < job::kOldestJobVersion || *version > job::kJobVersion);
}

void check_job(const RecordedRun& run, int round, const history::Accepted& accepted,
               Findings& findings) {
  const fs::path folder = run.folder.facility(round, accepted.facility);
  const std::string spec_name = run.name_of(folder / "job.json");
  findings.guard(spec_name, [&] {
    if (is_of_another_release(folder / "job.json"))
      return findings.skip("job.json has the format of another release", spec_name);
    const job::JobSpec spec = job::read_job_spec(folder / "job.json");
    const job::JobKey key = key_of(run, round, accepted.facility, accepted.attempt);
    if (!(spec.key == key))
      findings.fail(spec_name, "it is the job " + text_of(spec.key) + ", expected " + text_of(key));
    else
      findings.compare(spec_name, spec.base_model_sha256, input_sha256(run, round));
  });
  const auto scripts = run.scripts.find({round, accepted.facility});
  const std::string script_name = run.name_of(folder / "job.sh");
  if (scripts == run.scripts.end())
    return findings.skip("the journal has no script of the attempt", script_name);
  findings.guard(script_name, [&] {
    const std::string found = sha256_hex(read_file(folder / "job.sh", kMaxScriptBytes));
    if (scripts->second.contains(found))
      findings.pass();
    else
      findings.fail(script_name, "its SHA-256 is " + found +
                                     ", which no submission of this round has in the journal");
  });
}

void check_bases(const RecordedRun& run, std::vector<Check>& checks) {
  Findings findings(checks, "bases", "each round starts from the model of the round before");
  for (const auto& [number, order] : run.rounds) {
    if (order.planned == 0) continue;
    const std::string subject = event_name<history::RoundPlanned>(order.planned);
    if (order.base_sha256.empty())
      findings.skip("an earlier release recorded no model", subject);
    else
      findings.compare(subject, order.base_sha256, run.global_sha256(number - 1));
  }
}

const history::Accepted* accepted_of(const history::RoundState& round, const FacilityName& name) {
  const auto found = round.facilities.find(name);
  return found == round.facilities.end() || !found->second.accepted ? nullptr
                                                                    : &*found->second.accepted;
}

// A round averages all updates that were accepted before its participants were frozen.
void check_participants(const RecordedRun& run, std::vector<Check>& checks) {
  Findings findings(checks, "participants", "each round averages the accepted updates");
  for (const auto& [number, round] : run.state.rounds) {
    if (round.participants.empty()) continue;
    const RoundOrder& order = run.rounds.at(number);
    const std::string subject = event_name<history::ParticipantsFrozen>(order.frozen);
    std::set<FacilityName> frozen;
    for (const history::Participant& participant : round.participants) {
      const std::string of = participant.facility.str() + "'s update in " + subject;
      const history::Accepted* accepted = accepted_of(round, participant.facility);
      if (!frozen.insert(participant.facility).second)
        findings.fail(of, "the facility is a participant twice");
      else if (accepted == nullptr || order.accepted.at(participant.facility) > order.frozen)
        findings.fail(of, "no update of the facility was accepted before");
      else if (participant.update_sha256.empty())
        findings.skip("an earlier release recorded no updates", of);
      else
        findings.compare(of, participant.update_sha256, accepted->update_sha256);
    }
    for (const auto& [name, seq] : order.accepted)
      if (seq < order.frozen && accepted_of(round, name) != nullptr && !frozen.contains(name))
        findings.fail(subject, "the update of " + name.str() + " is left out, which " +
                                   event_name<history::UpdateAccepted>(seq) +
                                   " has accepted before");
  }
}

void check_weights(const RecordedRun& run, std::vector<Check>& checks) {
  Findings findings(checks, "weights", "each weight follows from the reports and aggregation");
  if (!run.experiment) return findings.skip("config.resolved.yaml is damaged");
  for (const auto& [number, round] : run.state.rounds) {
    if (round.participants.empty()) continue;
    const std::string subject =
        event_name<history::ParticipantsFrozen>(run.rounds.at(number).frozen);
    std::vector<history::Accepted> accepted;
    for (const history::Participant& participant : round.participants)
      if (const auto* update = accepted_of(round, participant.facility))
        accepted.push_back(*update);
    if (accepted.size() != round.participants.size()) {
      findings.skip("a participant has no report", subject);
      continue;
    }
    const std::vector<double> weights = facility::weights_of(accepted, run.experiment->aggregation);
    for (size_t i = 0; i < weights.size(); ++i) {
      const history::Participant& participant = round.participants[i];
      const std::string of = participant.facility.str() + "'s weight in " + subject;
      if (!participant.weight)
        findings.skip("an earlier release recorded no weights", of);
      else if (std::abs(*participant.weight - weights[i]) <= kWeightTolerance * weights[i])
        findings.pass();
      else
        findings.fail(
            of, "expected " + text_of(weights[i]) + ", found " + text_of(*participant.weight));
    }
  }
}

// CURRENT moves right before `published` is recorded.
void check_current(const RecordedRun& run, std::vector<Check>& checks) {
  Findings findings(checks, "current", "CURRENT names the newest published model");
  const int published = run.published();
  std::error_code problem;
  const fs::path found = fs::read_symlink(run.folder.current(), problem);
  const auto target = [&](int round) {
    return (run.folder.round(round).filename() / "global").string();
  };
  const bool is_next =
      !run.global_sha256(published + 1).empty() && found.string() == target(published + 1);
  if (published == 0 && !is_next) return findings.skip("no round is published");
  if (is_next) return findings.pass();
  if (run.goes_on && found.string() != target(published))
    return findings.skip("the run goes on and has published another round");
  findings.compare("CURRENT", found.string(), target(published));
}

}  // namespace

void check_journal(const RecordedRun& run, std::vector<Check>& checks) {
  const auto events = static_cast<int64_t>(run.journal.events.size());
  Findings chain(checks, "chain", "every event fits the journal's hash chain");
  chain.pass(events);
  if (!run.journal.damage.empty()) {
    chain.fail("journal.db", run.journal.damage);
    chain.skip("the events after event " + std::to_string(events) + " are unknown");
  }
  Findings history(checks, "events", "every event can have followed the earlier events");
  if (run.impossible_event.empty()) {
    history.pass(events);
  } else {
    history.fail("journal.db", run.impossible_event);
    history.skip("this event and the events after it");
  }
  Findings mirror(checks, "mirror", "journal.jsonl has the same events");
  mirror.pass(run.journal.mirrored);
  if (!run.journal.mirror_damage.empty())
    mirror.fail("journal.jsonl", run.journal.mirror_damage);
  else if (run.journal.damage.empty() && run.journal.mirrored < events)
    mirror.skip("the mirror lacks the newest events, which are written to it second",
                std::to_string(events - run.journal.mirrored) + " events");
}

void check_config(RecordedRun& run, std::vector<Check>& checks) {
  Findings findings(checks, "config", "config.resolved.yaml has the SHA-256 of the journal");
  const std::string subject = run.name_of(run.folder.config());
  findings.guard(subject, [&] {
    const std::string text = read_file(run.folder.config(), kMaxConfigBytes);
    // A coordinator writes the file right before it records the change.
    if (run.goes_on && sha256_hex(text) != run.state.config_sha256)
      findings.skip("the run goes on and has changed its configuration");
    else
      findings.compare(subject, sha256_hex(text), run.state.config_sha256);
    run.experiment = config::parse_experiment(text, run.folder.config(), run.project_folder);
  });
}

void check_attempts(const RecordedRun& run, std::vector<Check>& checks) {
  if (!run.state.identity) return;
  check_nonces(run, checks);
  Findings reports(checks, "reports",
                   "each report answers its attempt and names its input model and update");
  for_each_accepted(run, [&](int round, const history::Accepted& accepted) {
    check_report(run, round, accepted, reports);
  });
  Findings files(checks, "report files", "each report.json is the report of the journal");
  for_each_accepted(run, [&](int round, const history::Accepted& accepted) {
    check_archived_report(run, round, accepted, files);
  });
  Findings jobs(checks, "jobs", "job.json and job.sh are those of the accepted attempt");
  for_each_accepted(run, [&](int round, const history::Accepted& accepted) {
    check_job(run, round, accepted, jobs);
  });
}

void check_rounds(const RecordedRun& run, std::vector<Check>& checks) {
  if (!run.state.identity) return;
  check_bases(run, checks);
  check_participants(run, checks);
  check_weights(run, checks);
  check_current(run, checks);
}

}  // namespace xffl::verify
