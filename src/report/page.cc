#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>

#include "figures.h"
#include "html_writer.h"
#include "identities.h"
#include "numbers.h"
#include "style.h"
#include "xffl/report/format.h"
#include "xffl/usage/format.h"

namespace xffl::report {
namespace {

using std::chrono::nanoseconds;
using ValidationSet = std::pair<FacilityName, std::string>;

std::string title_of(const ValidationSet& set) { return set.first.str() + " " + set.second; }

// A wide table scrolls inside the page, so that the page itself does not.
void open_table(HtmlWriter& html) {
  html.open("div", {{"class", "scroll"}});
  html.open("table");
}
void close_table(HtmlWriter& html) {
  html.close();
  html.close();
}

void open_section(HtmlWriter& html, std::string id, std::string_view title) {
  html.open("section", {{"id", std::move(id)}});
  html.element("h2", title);
}

void open_details(HtmlWriter& html, std::string_view title) {
  html.open("details");
  html.element("summary", title);
}

void note(HtmlWriter& html, std::string_view text) { html.element("p", text, {{"class", "note"}}); }

std::vector<ValidationSet> sets_of(const RunStory& story) {
  std::set<ValidationSet> sets;
  for (const status::GlobalLoss& loss : story.losses) sets.insert({loss.facility, loss.set});
  return {sets.begin(), sets.end()};
}

// --- The head ---

void write_head(HtmlWriter& html, const RunStory& story) {
  html.open("header");
  html.element("h1", story.project + " / run " + story.run);
  html.open("p");
  html.element("strong", story.state, {{"class", "state"}});
  html.text(" · " + std::to_string(story.rounds_published) + " of " +
            (story.rounds_planned > 0 ? std::to_string(story.rounds_planned) : "?") +
            " rounds published · " + std::to_string(story.facilities.size()) + " facilities");
  html.close();
  if (story.stop_rule) html.element("p", "No round follows: " + story.stop_rule->text());
  note(html, "Written at " + format_utc(story.written) + ", complete up to event " +
                 std::to_string(story.num_events) + " of " + format_utc(story.last_event) +
                 ". All times are UTC. xffl " + story.version + ".");
  html.close();
}

void write_needs(HtmlWriter& html, const RunStory& story) {
  html.open("section", {{"id", "needs"}, {"class", story.needs.empty() ? "calm" : "needs"}});
  html.element("h2", "Needs you");
  if (story.needs.empty()) html.element("p", "Nothing: no action is open.");
  html.open("ul");
  for (const Need& need : story.needs) {
    html.open("li");
    html.text(need.text, 1000);
    if (!need.command.empty()) {
      html.text(" — run: ");
      html.element("code", need.command);
    }
    html.close();
  }
  html.close();
  html.close();
}

// The present activities, as long as a coordinator reports them.
void write_now(HtmlWriter& html, const RunStory& story) {
  if (story.live.empty()) return;
  html.open("section", {{"id", "now"}});
  html.element("h2", "Now");
  html.open("ul");
  for (const auto& [name, activity] : story.live)
    html.element("li", name.str() + ", round " + std::to_string(activity.round) + ": " +
                           activity.activity + " (since " + activity.since_utc + ")");
  html.close();
  html.close();
}

// --- Tiles ---

void tile(HtmlWriter& html, std::string target, std::string_view question, std::string_view answer,
          std::string_view more) {
  html.open("a", {{"class", "tile"}, {"href", std::move(target)}});
  html.element("span", question, {{"class", "q"}});
  html.element("b", answer);
  html.element("span", more, {{"class", "more"}});
  html.close();
}

std::string learning_answer(const std::vector<MeanLoss>& means) {
  if (means.empty()) return "not measured";
  if (means.size() == 1) return loss_text(means.front().nll);
  return loss_text(means.front().nll) + " → " + loss_text(means.back().nll);
}

std::string learning_more(const RunStory& story, const std::vector<MeanLoss>& means) {
  if (means.empty())
    return story.losses.empty() ? "no facility has reported a validation loss"
                                : "no model was measured on all sets";
  const MeanLoss& best = *std::min_element(
      means.begin(), means.end(), [](const auto& a, const auto& b) { return a.nll < b.nll; });
  return "mean loss (nats per token) of model " + std::to_string(means.front().round) + " and " +
         std::to_string(means.back().round) + "; best: model " + std::to_string(best.round) + ", " +
         loss_text(best.nll);
}

// The shares of training and queue in the facilities' attempts; empty: not known.
std::string shares_text(const RunStory& story) {
  nanoseconds all{0}, training{0}, queue{0};
  for (const FacilityName& name : story.facilities)
    for (const auto& [phase, time] : time_by_phase(story, name)) {
      all += time;
      if (phase == Phase::kTraining) training += time;
      if (phase == Phase::kQueue) queue += time;
    }
  if (all.count() == 0) return "no attempt yet";
  if (training.count() == 0 && queue.count() == 0)
    return "training and queue not known: the jobs left no times";
  const double sum = static_cast<double>(all.count());
  return percent_text(static_cast<double>(training.count()) / sum) + " training, " +
         percent_text(static_cast<double>(queue.count()) / sum) + " queue";
}

std::string cost_answer(const usage::Ledger& ledger) {
  if (ledger.rows.empty()) return "nothing";
  const std::string hours = usage::hours_text(ledger.total().node_seconds);
  return hours == "not known" ? hours : hours + " node-hours";
}

std::string cost_more(const usage::Ledger& ledger) {
  const usage::Total total = ledger.total();
  if (total.node_seconds.seconds == 0) return "no hours are on record";
  const auto lost = total.node_seconds_by_outcome.find(usage::Outcome::kLost);
  const double share = lost == total.node_seconds_by_outcome.end()
                           ? 0
                           : lost->second.seconds / total.node_seconds.seconds;
  const int unknown = total.node_seconds.unknown;
  return percent_text(share) + " lost" +
         (unknown > 0 ? "; hours of " + std::to_string(unknown) + " starts not known" : "");
}

struct Troubles {
  int failed = 0, requeued = 0, missing = 0, pauses = 0, ends = 0;
};
Troubles troubles_of(const RunStory& story) {
  Troubles troubles;
  for (const Incident& incident : story.incidents) {
    troubles.failed += incident.kind == "attempt failed" || incident.kind == "update lost";
    troubles.requeued += incident.kind == "job requeued";
    troubles.missing += incident.kind == "facility missing";
    troubles.pauses += incident.kind == "facility paused";
    troubles.ends += incident.kind == "coordinator ended" || incident.kind == "run stopped";
  }
  return troubles;
}

int64_t failed_checks(const RunStory& story) {
  return std::count_if(story.checks.begin(), story.checks.end(),
                       [](const history::KeptCheck& check) { return check.result == "failed"; });
}

std::string trust_answer(const RunStory& story) {
  const int64_t failed = failed_checks(story);
  if (failed > 0)
    return std::to_string(failed) + (failed == 1 ? " check FAILED" : " checks FAILED");
  const int round = story.verified_round();
  if (round < 0) return "never verified";
  return round == story.rounds_published ? "verified"
                                         : "verified up to round " + std::to_string(round);
}

std::string trust_more(const RunStory& story) {
  const std::string chain = "chain of " + std::to_string(story.num_events) + " events intact";
  if (story.checks.empty()) return chain + "; `xffl verify` checks the files";
  const auto made = std::count_if(story.checks.begin(), story.checks.end(),
                                  [](const auto& check) { return check.result != "not checked"; });
  return chain + "; " + std::to_string(made) + " of " + std::to_string(story.checks.size()) +
         " checks made by `xffl verify`";
}

void write_tiles(HtmlWriter& html, const RunStory& story) {
  const std::vector<MeanLoss> means = mean_losses(story);
  const Troubles troubles = troubles_of(story);
  html.open("nav", {{"class", "tiles"}});
  tile(html, "#learning", "Is it learning?", learning_answer(means), learning_more(story, means));
  tile(html, "#time", "Where did the time go?", duration_text(story.elapsed()), shares_text(story));
  tile(html, "#cost", "What did it cost?", cost_answer(story.ledger), cost_more(story.ledger));
  tile(html, "#trouble", "What went wrong?",
       story.incidents.empty() ? "nothing" : std::to_string(story.incidents.size()) + " incidents",
       "failed attempts: " + std::to_string(troubles.failed) + ", requeues: " +
           std::to_string(troubles.requeued) + ", missing: " + std::to_string(troubles.missing) +
           ", pauses: " + std::to_string(troubles.pauses) +
           ", stops: " + std::to_string(troubles.ends));
  tile(html, "#trust", "Can I trust it?", trust_answer(story), trust_more(story));
  html.close();
}

// --- Learning ---

std::string loss_cell(const status::GlobalLoss& loss) {
  return loss_text(loss.nll) + " (" + perplexity_text(loss.nll) +
         (loss.accuracy > 0 ? "; " + accuracy_text(loss.accuracy) : "") + ")";
}

// The matrix of published models and validation sets.
void loss_table(HtmlWriter& html, const RunStory& story, const std::vector<ValidationSet>& sets) {
  std::map<int, std::map<ValidationSet, const status::GlobalLoss*>> rows;
  bool has_accuracy = false;
  for (const status::GlobalLoss& loss : story.losses) {
    rows[loss.round][{loss.facility, loss.set}] = &loss;
    has_accuracy = has_accuracy || loss.accuracy > 0;
  }
  for (int round = 0; round <= story.rounds_published; ++round) rows[round];
  const size_t first = first_row(rows.size(), sets.size() + 1);
  rows.erase(rows.begin(), std::next(rows.begin(), static_cast<ptrdiff_t>(first)));
  note_omitted_rows(html, first);
  open_table(html);
  html.element("caption",
               std::string("Loss in nats per token (perplexity") +
                   (has_accuracy ? "; share of the tokens predicted right" : "") +
                   ") of each published model on each facility's validation sets; model 0 is the "
                   "initial one");
  html.open("thead");
  html.open("tr");
  html.element("th", "model");
  for (const ValidationSet& set : sets) html.element("th", title_of(set));
  html.close();
  html.close();
  for (const auto& [round, losses] : rows) {
    html.open("tr");
    html.element("th", std::to_string(round));
    for (const ValidationSet& set : sets) {
      const auto found = losses.find(set);
      if (found == losses.end())
        html.element("td", "not measured", {{"class", "none"}});
      else
        html.element("td", loss_cell(*found->second));
    }
    html.close();
  }
  close_table(html);
}

void write_learning(HtmlWriter& html, const RunStory& story) {
  open_section(html, "learning", "Is it learning?");
  const std::vector<ValidationSet> sets = sets_of(story);
  if (sets.empty()) {
    note(html, "Not measured: no facility has reported a validation loss.");
  } else {
    note(html,
         "A job measures its input model before it trains: the jobs of round k + 1 measure the "
         "model of round k, and the evaluation measures the last model.");
    write_loss_figure(html, story);
    open_details(html, "Table: loss of each published model");
    loss_table(html, story, sets);
    html.close();
    write_effect_figure(html, story);
  }
  write_change_figure(html, story);
  write_direction_figure(html, story);
  write_step_figure(html, story);
  html.close();
}

// --- Time ---

void write_time(HtmlWriter& html, const RunStory& story) {
  open_section(html, "time", "Where did the time go?");
  note(html, "From the first event to " +
                 std::string(story.state == "running" ? "this report" : "the last event") + ": " +
                 duration_text(story.elapsed()) + ".");
  if (story.clock_anomalies > 0)
    note(html, std::to_string(story.clock_anomalies) +
                   " times of jobs lie outside their attempts; the report moved them to the "
                   "attempt's bounds. Compare the clocks of the facilities.");
  write_share_figure(html, story);
  open_details(html, "Table: time by phase");
  open_table(html);
  html.open("thead");
  html.open("tr");
  html.element("th", "facility");
  for (int i = 0; i < kNumPhases; ++i) html.element("th", name_of(static_cast<Phase>(i)));
  html.close();
  html.close();
  for (const FacilityName& name : story.facilities) {
    html.open("tr");
    html.element("th", name.str());
    const auto times = time_by_phase(story, name);
    for (int i = 0; i < kNumPhases; ++i) {
      const auto found = times.find(static_cast<Phase>(i));
      html.element("td", found == times.end() ? "-" : duration_text(found->second));
    }
    html.close();
  }
  close_table(html);
  html.close();
  write_round_figure(html, story);
  write_timeline(html, story);
  write_sent(html, story);
  open_details(html, "Coordinators");
  open_table(html);
  html.head_row({"began", "ended", "end"});
  for (const CoordinatorStory& coordinator : story.coordinators)
    html.row({format_utc(coordinator.began),
              coordinator.ended ? format_utc(*coordinator.ended) : "not recorded",
              coordinator.end.empty() ? "holds the run" : coordinator.end});
  close_table(html);
  html.close();
  html.close();
}

// --- Cost, trouble, trust, details ---

void write_cost(HtmlWriter& html, const RunStory& story) {
  open_section(html, "cost", "What did it cost?");
  const std::vector<usage::TableRow> rows = usage::table_rows(story.ledger);
  if (rows.empty()) {
    html.element("p", "No job has been submitted.");
    html.close();
    return;
  }
  note(html,
       "Node-hours: nodes x hours from the begin of a job's script to its end, by the facility's "
       "own "
       "clock. Lost: attempts without an accepted update, and starts that a requeue ended. Idle: "
       "kept "
       "allocations between two attempts.");
  open_table(html);
  std::vector<std::string> heads{"facility"};
  heads.insert(heads.end(), usage::table_heads().begin(), usage::table_heads().end());
  html.head_row(heads);
  for (const usage::TableRow& one : rows) {
    std::vector<std::string> cells{one.name};
    cells.insert(cells.end(), one.cells.begin(), one.cells.end());
    html.row(cells);
  }
  close_table(html);
  for (const std::string& remark : usage::remarks(story.ledger)) note(html, remark);
  note(html, "Each start of a job: `xffl usage --csv`.");
  html.close();
}

std::string names_text(const std::vector<FacilityName>& names) {
  std::string text;
  for (const FacilityName& name : names) text += (text.empty() ? "" : ", ") + name.str();
  return text;
}

void write_trouble(HtmlWriter& html, const RunStory& story) {
  open_section(html, "trouble", "What went wrong?");
  if (story.incidents.empty()) {
    html.element("p", "Nothing is on record.");
    html.close();
    return;
  }
  open_table(html);
  html.element("caption", "By reason; reasons that differ in digits only count as one");
  html.head_row({"count", "incident", "facilities", "node-hours lost", "reason"});
  std::vector<IncidentGroup> groups = grouped(story.incidents);
  constexpr size_t kMaxGroups = 200;
  if (groups.size() > kMaxGroups) groups.resize(kMaxGroups);
  for (const IncidentGroup& group : groups)
    html.row({std::to_string(group.count), group.kind, names_text(group.facilities),
              group.lost ? usage::hours_text(*group.lost) : "-", group.reason.substr(0, 600)});
  close_table(html);
  open_details(html, "All " + std::to_string(story.incidents.size()) + " incidents, by time");
  const size_t first = first_row(story.incidents.size(), 8);
  note_omitted_rows(html, first);
  open_table(html);
  html.head_row(
      {"time", "facility", "round", "attempt", "job", "incident", "reason", "followed by"});
  for (size_t i = first; i < story.incidents.size(); ++i) {
    const Incident& incident = story.incidents[i];
    html.row({format_utc(incident.time), incident.facility ? incident.facility->str() : "",
              incident.round > 0 ? std::to_string(incident.round) : "",
              incident.attempt > 0 ? std::to_string(incident.attempt) : "", incident.job_id,
              incident.kind, incident.reason.substr(0, 600), incident.followed});
  }
  close_table(html);
  html.close();
  html.close();
}

std::string rounds_text(const Identity& one) {
  const std::string first = std::to_string(one.first_round);
  return one.first_round == one.last_round ? first
                                           : first + " to " + std::to_string(one.last_round);
}

std::string data_text(const Identity& one) {
  if (one.data_sha256.empty()) return "not reported";
  return std::to_string(one.data_files) + (one.data_files == 1 ? " shard, " : " shards, ") +
         bytes_text(static_cast<double>(one.data_bytes)) + ", " + one.data_sha256.substr(0, 16);
}

void write_identities(HtmlWriter& html, const RunStory& story) {
  const std::vector<Identity> all = identities(story);
  if (all.empty()) return;
  const size_t first = first_row(all.size(), 5);
  note_omitted_rows(html, first);
  open_table(html);
  html.element("caption",
               "Programs and data of the accepted trainings, as the jobs report them; a facility "
               "with several rows has changed one of them. Hashes: the first 16 digits of SHA-256");
  html.head_row({"facility", "rounds", "trainer", "program", "data"});
  for (size_t i = first; i < all.size(); ++i)
    html.row({all[i].facility.str(), rounds_text(all[i]), all[i].trainer,
              all[i].program_sha256.empty() ? "not reported" : all[i].program_sha256.substr(0, 16),
              data_text(all[i])});
  close_table(html);
}

std::string check_details(const history::KeptCheck& check) {
  std::string text =
      check.passed > 0 ? check.content + " (" + std::to_string(check.passed) + ")" : "";
  const auto add = [&text](const std::string& more) { text += (text.empty() ? "" : "; ") + more; };
  for (const std::string& failure : check.failures) add(failure);
  const auto shown = static_cast<int64_t>(check.failures.size());
  if (check.failed > shown) add("and " + std::to_string(check.failed - shown) + " more");
  for (const std::string& reason : check.not_checked) add("not checked: " + reason);
  return text;
}

// What `xffl verify` told the user, check by check.
void write_checks(HtmlWriter& html, const RunStory& story) {
  if (story.checks.empty()) return;
  const int round = story.verified_round();
  if (round >= 0 && round < story.rounds_published)
    note(html, "The rounds after " + std::to_string(round) +
                   " were published after the verification: run `xffl verify` again.");
  open_table(html);
  html.element(
      "caption",
      "The newest result of each check of `xffl verify`, as verification.json in the run's "
      "folder has it");
  html.head_row({"check", "result", "made", "up to event", "subject"});
  for (const history::KeptCheck& check : story.checks)
    html.row({check.name, check.result == "failed" ? "FAILED" : check.result, check.checked_at,
              std::to_string(check.events), check_details(check)});
  close_table(html);
}

void write_trust(HtmlWriter& html, const RunStory& story) {
  open_section(html, "trust", "Can I trust it?");
  html.open("ul");
  html.element("li", "ok: the journal's chain of " + std::to_string(story.num_events) +
                         " events, read for this report");
  html.element("li", "ok: each event can follow from the events before it");
  if (story.checks.empty())
    html.element("li", "not checked: the files of models and updates; `xffl verify` checks them");
  html.element("li",
               "not provable: the training and the data of a facility, beyond its own report; the "
               "author of the journal, which has no signature");
  html.close();
  write_checks(html, story);
  write_identities(html, story);
  open_table(html);
  html.head_row({"fact", "value"});
  html.row({"SHA-256 of config.resolved.yaml", story.config_sha256});
  html.row({"newest global model", story.model_sha256});
  close_table(html);
  html.close();
}

std::string participants_text(const RoundStory& round) {
  double sum = 0;
  for (const history::Participant& one : round.participants) sum += one.weight.value_or(0);
  std::string text;
  for (const history::Participant& one : round.participants) {
    text += (text.empty() ? "" : ", ") + one.facility.str();
    if (one.weight && sum > 0) text += " " + percent_text(*one.weight / sum);
  }
  return text.empty() ? "-" : text;
}

std::string took(const std::optional<Time>& from, const std::optional<Time>& to) {
  return from && to ? duration_text(*to - *from) : "-";
}

void write_rounds(HtmlWriter& html, const RunStory& story) {
  open_section(html, "details", "Details");
  open_details(html, "Rounds");
  size_t omitted = first_row(story.rounds.size(), 8 + 2 * story.facilities.size());
  note_omitted_rows(html, omitted);
  open_table(html);
  html.head_row({"round", "planned", "took", "last update", "mean took", "participants (share)",
                 "missing", "model"});
  for (const auto& [number, round] : story.rounds) {
    if (omitted > 0) {
      --omitted;
      continue;
    }
    std::vector<FacilityName> missing;
    for (const auto& [name, reason] : round.missing) missing.push_back(name);
    html.row({round.evaluates ? "evaluation" : std::to_string(number),
              round.planned ? format_utc(*round.planned) : "-",
              took(round.planned, round.published), round.last ? round.last->str() : "-",
              took(round.frozen, round.published), participants_text(round), names_text(missing),
              round.model_sha256.empty() ? "-" : round.model_sha256.substr(0, 16)});
  }
  close_table(html);
  html.close();
  for (const std::string& text : story.notes) note(html, text);
  html.close();
}

}  // namespace

std::string format_html(const RunStory& story, std::optional<std::chrono::seconds> refresh) {
  HtmlWriter html;
  html.markup("<!DOCTYPE html>\n");
  html.open("html", {{"lang", "en"}});
  html.open("head");
  html.empty("meta", {{"charset", "utf-8"}});
  html.empty("meta", {{"http-equiv", "Content-Security-Policy"},
                      {"content",
                       "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
                       "base-uri 'none'; form-action 'none'"}});
  html.empty("meta", {{"name", "viewport"}, {"content", "width=device-width, initial-scale=1"}});
  html.empty("meta", {{"name", "referrer"}, {"content", "no-referrer"}});
  if (refresh)
    html.empty("meta", {{"http-equiv", "refresh"}, {"content", std::to_string(refresh->count())}});
  html.element("title", story.project + " run " + story.run + ": " + story.state);
  html.open("style");
  html.markup(kStyle);
  html.close();
  html.close();
  html.open("body");
  html.open("main");
  write_head(html, story);
  write_needs(html, story);
  write_now(html, story);
  write_tiles(html, story);
  write_learning(html, story);
  write_time(html, story);
  write_cost(html, story);
  write_trouble(html, story);
  write_trust(html, story);
  write_rounds(html, story);
  html.close();
  html.close();
  html.close();
  html.markup("\n");
  return html.take();
}

}  // namespace xffl::report
