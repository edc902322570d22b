#include "xffl/base/json.h"
#include "xffl/base/log.h"
#include "xffl/verify/verify.h"

namespace xffl::verify {
namespace {

constexpr size_t kMaxSubject = 300;
constexpr size_t kMaxProblem = 1000;
constexpr size_t kShownSubjects = 3;

// "ok           chain: 26 events ..."
std::string line(std::string_view result, const std::string& text) {
  std::string start(result);
  start.resize(13, ' ');
  return start + text + "\n";
}

std::string subjects_text(const std::vector<std::string>& subjects) {
  std::string text;
  for (size_t i = 0; i < std::min(kShownSubjects, subjects.size()); ++i)
    text += (i > 0 ? ", " : "") + log::printable(subjects[i], kMaxSubject);
  if (subjects.size() > kShownSubjects)
    text += " and " + std::to_string(subjects.size() - kShownSubjects) + " more";
  return text;
}

std::string check_text(const Check& check) {
  std::string text;
  if (check.passed > 0)
    text +=
        line("ok", check.name + ": " + check.content + " (" + std::to_string(check.passed) + ")");
  for (const Failure& failure : check.failures)
    text += line("FAILED", check.name + ": " + log::printable(failure.subject, kMaxSubject) + ": " +
                               log::printable(failure.problem, kMaxProblem));
  for (const NotChecked& skipped : check.not_checked)
    text +=
        line("not checked",
             check.name + ": " + log::printable(skipped.reason, kMaxProblem) +
                 (skipped.subjects.empty() ? "" : " (" + subjects_text(skipped.subjects) + ")"));
  return text;
}

}  // namespace

std::vector<history::KeptCheck> kept_checks(const Verification& verification, Clock::UtcTime now) {
  constexpr size_t kMaxKept = 5;
  std::vector<history::KeptCheck> kept;
  for (const Check& check : verification.checks) {
    history::KeptCheck one;
    one.name = check.name;
    one.content = check.content;
    one.result = check.result();
    one.checked_at = format_utc(now);
    one.events = verification.events;
    one.last_event_at = verification.last_time;
    one.passed = check.passed;
    one.failed = static_cast<int64_t>(check.failures.size());
    for (size_t i = 0; i < std::min(kMaxKept, check.failures.size()); ++i)
      one.failures.push_back(log::printable(check.failures[i].subject, kMaxSubject) + ": " +
                             log::printable(check.failures[i].problem, kMaxProblem));
    for (size_t i = 0; i < std::min(kMaxKept, check.not_checked.size()); ++i)
      one.not_checked.push_back(log::printable(check.not_checked[i].reason, kMaxProblem));
    kept.push_back(std::move(one));
  }
  return kept;
}

std::string format_text(const Verification& verification) {
  std::string text =
      log::printable(verification.project, kMaxSubject) + " / run " + verification.run + ": " +
      std::to_string(verification.rounds_published) + " rounds published, checked up to event " +
      std::to_string(verification.events) + " of " + log::printable(verification.last_time, 40) +
      (verification.goes_on ? "; the run goes on" : "") + "\n";
  text += "model " + verification.model_sha256 + "\njournal " + verification.chain + "\n\n";
  for (const Check& check : verification.checks) text += check_text(check);
  text += "\n" + std::to_string(verification.num("ok")) + " checks ok, " +
          std::to_string(verification.num("failed")) + " failed, " +
          std::to_string(verification.num("not checked")) + " not made. Not proven:\n";
  for (const std::string& statement : not_proven()) text += "- " + statement + "\n";
  return text;
}

std::string format_json(const Verification& verification) {
  Json json;
  json["schema"] = 1;
  json["run"] = verification.run;
  json["project"] = verification.project;
  json["events"] = verification.events;
  json["chain"] = verification.chain;
  json["last_event_at"] = verification.last_time;
  json["rounds_published"] = verification.rounds_published;
  json["model_sha256"] = verification.model_sha256;
  json["goes_on"] = verification.goes_on;
  json["ok"] = verification.num("failed") == 0;
  json["checks"] = Json::array();
  for (const Check& check : verification.checks) {
    Json one = {{"check", check.name},
                {"result", check.result()},
                {"content", check.content},
                {"passed", check.passed}};
    one["failures"] = Json::array();
    for (const Failure& failure : check.failures)
      one["failures"].push_back({{"subject", log::printable(failure.subject)},
                                 {"problem", log::printable(failure.problem)}});
    one["not_checked"] = Json::array();
    for (const NotChecked& skipped : check.not_checked)
      one["not_checked"].push_back(
          {{"reason", log::printable(skipped.reason)}, {"subjects", skipped.subjects}});
    json["checks"].push_back(std::move(one));
  }
  json["not_proven"] = not_proven();
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace xffl::verify
