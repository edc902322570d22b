#include <algorithm>

#include "identities.h"
#include "numbers.h"
#include "xffl/base/log.h"
#include "xffl/report/format.h"
#include "xffl/usage/format.h"

namespace xffl::report {
namespace {

std::string heading(const std::string& title) {
  return "\n" + title + "\n" + std::string(title.size(), '-') + "\n";
}

std::string learning(const RunStory& story) {
  std::string text = heading("Is it learning?");
  const std::vector<MeanLoss> means = mean_losses(story);
  if (story.losses.empty()) return text + "Not measured: no facility has reported a loss.\n";
  if (means.size() > 1)
    text += "mean loss: " + loss_text(means.front().nll) + " (model " +
            std::to_string(means.front().round) + ") -> " + loss_text(means.back().nll) +
            " (model " + std::to_string(means.back().round) + ")\n";
  text += "model  facility and set: loss (perplexity)\n";
  for (const status::GlobalLoss& loss : story.losses) {
    const std::string round = std::to_string(loss.round);
    text += std::string(5 - std::min<size_t>(5, round.size()), ' ') + round + "  " +
            loss.facility.str() + " " + log::printable(loss.set, 60) + ": " + loss_text(loss.nll) +
            " (" + perplexity_text(loss.nll) + ")" +
            (loss.accuracy > 0 ? ", accuracy " + accuracy_text(loss.accuracy) : "") + "\n";
  }
  return text;
}

std::string times(const RunStory& story) {
  std::string text = heading("Where did the time go?");
  text += "elapsed: " + duration_text(story.elapsed()) + "\n";
  for (const FacilityName& name : story.facilities) {
    std::string parts;
    for (const auto& [phase, time] : time_by_phase(story, name))
      parts +=
          (parts.empty() ? "" : ", ") + std::string(name_of(phase)) + " " + duration_text(time);
    text += name.str() + ": " + (parts.empty() ? "no attempt" : parts) + "\n";
  }
  for (const CoordinatorStory& coordinator : story.coordinators)
    text += "coordinator from " + format_utc(coordinator.began) +
            (coordinator.ended ? " to " + format_utc(*coordinator.ended) : "") +
            (coordinator.end.empty() ? "" : ": " + coordinator.end) + "\n";
  return text;
}

std::string troubles(const RunStory& story) {
  std::string text = heading("What went wrong?");
  if (story.incidents.empty()) return text + "Nothing is on record.\n";
  for (const IncidentGroup& group : grouped(story.incidents)) {
    std::string names;
    for (const FacilityName& name : group.facilities) names += " " + name.str();
    text += std::to_string(group.count) + " x " + group.kind + names +
            (group.lost ? " (node-hours lost: " + usage::hours_text(*group.lost) + ")" : "") +
            ": " + log::printable(group.reason, 300) + "\n";
  }
  text += "\n";
  for (const Incident& incident : story.incidents) {
    text += format_utc(incident.time);
    if (incident.round > 0) text += " round " + std::to_string(incident.round);
    if (incident.facility) text += " " + incident.facility->str();
    if (incident.attempt > 0) text += " attempt " + std::to_string(incident.attempt);
    if (!incident.job_id.empty()) text += " job " + incident.job_id;
    text += ": " + incident.kind;
    if (!incident.followed.empty()) text += "; " + incident.followed;
    text += "\n";
  }
  return text;
}

// A line for each facility whose program or data changed between rounds.
std::string changed_identities(const RunStory& story) {
  std::string text;
  const std::vector<Identity> all = identities(story);
  for (size_t i = 1; i < all.size(); ++i)
    if (all[i].facility == all[i - 1].facility)
      text += all[i].facility.str() + ": program or data differ from round " +
              std::to_string(all[i].first_round) + " on (the page has the hashes)\n";
  return text;
}

std::string checks_text(const RunStory& story) {
  if (story.checks.empty())
    return "not checked: the files of models and updates; `xffl verify` checks them\n";
  std::string text;
  for (const history::KeptCheck& check : story.checks) {
    if (check.result == "not checked") continue;
    text += (check.result == "ok" ? "ok: " : "FAILED: ") + log::printable(check.name, 60) +
            ", by " + "`xffl verify` at " + log::printable(check.checked_at, 40) + "\n";
    for (const std::string& failure : check.failures)
      text += "  " + log::printable(failure, 300) + "\n";
  }
  const int round = story.verified_round();
  if (round >= 0 && round < story.rounds_published)
    text += "not checked: the rounds after " + std::to_string(round) + "\n";
  return text;
}

}  // namespace

std::string format_text(const RunStory& story) {
  std::string text = log::printable(story.project) + " / run " + story.run + ": " + story.state +
                     ", " + std::to_string(story.rounds_published) + " of " +
                     std::to_string(story.rounds_planned) + " rounds published\n";
  if (story.stop_rule)
    text += "no round follows: " + log::printable(story.stop_rule->text(), 400) + "\n";
  text += "written at " + format_utc(story.written) + ", complete up to event " +
          std::to_string(story.num_events) + "\n";
  text += heading("Needs you");
  if (story.needs.empty()) text += "Nothing: no action is open.\n";
  for (const Need& need : story.needs)
    text += "- " + log::printable(need.text, 600) +
            (need.command.empty() ? "" : "\n  run: " + log::printable(need.command, 300)) + "\n";
  if (!story.live.empty()) text += heading("Now");
  for (const auto& [name, activity] : story.live)
    text += name.str() + ", round " + std::to_string(activity.round) + ": " +
            log::printable(activity.activity, 300) + " (since " +
            log::printable(activity.since_utc, 40) + ")\n";
  text += learning(story) + times(story);
  text += heading("What did it cost?") + usage::format_text(story.ledger);
  text += troubles(story);
  text += heading("Can I trust it?") + "ok: the journal's chain of " +
          std::to_string(story.num_events) + " events\n" + checks_text(story) +
          changed_identities(story);
  for (const std::string& one : story.notes) text += log::printable(one, 500) + "\n";
  return text;
}

}  // namespace xffl::report
