#include "figures.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "charts.h"
#include "numbers.h"

namespace xffl::report {
namespace {

using std::chrono::nanoseconds;
using ValidationSet = std::pair<FacilityName, std::string>;

double count(nanoseconds duration) { return static_cast<double>(duration.count()); }

// The rounds that one column of a figure stands for, in a run of `rounds` rounds: the figure has at
// most 1,000 cells, or 50 columns, so that the page stays small.
int rounds_per_column(int rounds, size_t lines) {
  const int columns = std::max(50, 1000 / static_cast<int>(std::max<size_t>(1, lines)));
  return std::max(1, (rounds + columns - 1) / columns);
}

int last_round(const RunStory& story) {
  return story.rounds.empty() ? 0 : story.rounds.rbegin()->first;
}

void figure_title(HtmlWriter& html, std::string_view title, std::string_view explanation) {
  html.element("h3", title);
  html.element("p", explanation, {{"class", "note"}});
}

void open_folded_table(HtmlWriter& html, std::string_view summary,
                       const std::vector<std::string>& titles, size_t first = 0) {
  html.open("details");
  html.element("summary", summary);
  note_omitted_rows(html, first);
  html.open("div", {{"class", "scroll"}});
  html.open("table");
  html.head_row(titles);
}
void close_folded_table(HtmlWriter& html) {
  for (int i = 0; i < 3; ++i) html.close();
}

const job::ValidationResult* result_of(const AttemptStory& attempt, const std::string& set) {
  if (attempt.outcome != Outcome::kAccepted || !attempt.report) return nullptr;
  for (const job::ValidationResult& result : attempt.report->validation)
    if (result.name == set) return &result;
  return nullptr;
}

// The accepted attempts by facility and round.
std::map<FacilityName, std::map<int, const AttemptStory*>> accepted_of(const RunStory& story) {
  std::map<FacilityName, std::map<int, const AttemptStory*>> accepted;
  for (const AttemptStory& attempt : story.attempts)
    if (attempt.outcome == Outcome::kAccepted) accepted[attempt.facility][attempt.round] = &attempt;
  return accepted;
}

std::string measured(const std::optional<double>& nll) {
  return nll ? loss_text(*nll) : "not measured";
}

void phase_legend(HtmlWriter& html, const RunStory& story) {
  std::set<Phase> used;
  for (const AttemptStory& attempt : story.attempts)
    for (const Span& span : attempt.spans) used.insert(span.phase);
  std::vector<std::pair<int, std::string_view>> entries;
  for (const Phase phase : used) entries.emplace_back(static_cast<int>(phase), name_of(phase));
  write_legend(html, entries);
}

std::string attempt_title(const AttemptStory& attempt) {
  std::string text = attempt.facility.str() + ", round " + std::to_string(attempt.round) +
                     ", attempt " + std::to_string(attempt.number) + ", " +
                     std::string(name_of(attempt.outcome));
  for (const Span& span : attempt.spans)
    text += "; " + std::string(name_of(span.phase)) + " " + duration_text(span.end - span.begin);
  return text;
}

// A range of time that a figure shows from 0 to 100.
struct TimeAxis {
  Time begin, end;
  double at(Time time) const {
    return std::clamp(100 * count(time - begin) / count(end - begin), 0.0, 100.0);
  }
};

// Of the attempts from round `first` on; absent when they took no time.
std::optional<TimeAxis> time_axis(const RunStory& story, int first) {
  std::optional<TimeAxis> axis;
  for (const AttemptStory& attempt : story.attempts)
    for (const Span& span : attempt.spans)
      if (attempt.round >= first) {
        if (!axis) axis = TimeAxis{span.begin, span.end};
        axis->begin = std::min(axis->begin, span.begin);
        axis->end = std::max(axis->end, span.end);
      }
  if (axis && axis->end <= axis->begin) axis.reset();
  return axis;
}

// Coordinators of one place share a mark, so that a run of many restarts has few.
std::vector<double> coordinator_marks(const RunStory& story, const TimeAxis& axis) {
  constexpr double kDistance = 0.3;
  std::vector<double> marks;
  for (const CoordinatorStory& coordinator : story.coordinators)
    if (coordinator.began >= axis.begin && coordinator.began <= axis.end)
      if (const double at = axis.at(coordinator.began);
          marks.empty() || at - marks.back() >= kDistance)
        marks.push_back(at);
  return marks;
}

// Slices of equal length, each in the colour of the phase that took most of it. A slice that had no
// attempt for most of its time has no colour. Neighbours of one colour are one segment.
constexpr int kSlices = 250;
std::vector<Segment> slices_of(const std::vector<Segment>& segments) {
  constexpr double kWidth = 100.0 / kSlices;
  std::array<std::array<double, kNumPhases>, kSlices> times{};
  for (const Segment& segment : segments) {
    const int first = std::clamp(static_cast<int>(segment.begin / kWidth), 0, kSlices - 1);
    const int last = std::clamp(static_cast<int>(segment.end / kWidth), 0, kSlices - 1);
    for (int i = first; i <= last; ++i)
      times.at(static_cast<size_t>(i)).at(static_cast<size_t>(segment.color)) += std::max(
          0.0, std::min(segment.end, kWidth * (i + 1)) - std::max(segment.begin, kWidth * i));
  }
  std::vector<Segment> slices;
  for (int i = 0; i < kSlices; ++i) {
    const auto& phases = times.at(static_cast<size_t>(i));
    double covered = 0;
    for (const double time : phases) covered += time;
    const auto most = std::max_element(phases.begin(), phases.end());
    if (kWidth - covered > *most) continue;
    const int color = static_cast<int>(most - phases.begin());
    if (!slices.empty() && slices.back().color == color && slices.back().end >= kWidth * i - 1e-9)
      slices.back().end = kWidth * (i + 1);
    else
      slices.push_back({kWidth * i, kWidth * (i + 1), color});
  }
  return slices;
}

// "rounds 7 to 8: 3 attempts, 1 without an update"
std::string rounds_title(int first, int last, int attempts, int failed) {
  return (first == last ? "round " + std::to_string(first)
                        : "rounds " + std::to_string(first) + " to " + std::to_string(last)) +
         ": " + std::to_string(attempts) + (attempts == 1 ? " attempt" : " attempts") +
         (failed > 0 ? ", " + std::to_string(failed) + " without an update" : "");
}

// The whole run, small: the figure of the last rounds has the details.
void write_overview(HtmlWriter& html, const RunStory& story) {
  const std::optional<TimeAxis> axis = time_axis(story, 1);
  if (!axis) return;
  figure_title(html, "All rounds by time",
               "From " + format_utc(axis->begin) + " to " + format_utc(axis->end) + ", in " +
                   std::to_string(kSlices) + " slices of " +
                   duration_text((axis->end - axis->begin) / kSlices) +
                   ": each has the colour of the phase that took most of it, or none where the "
                   "facility had no attempt. A dashed line: a coordinator began.");
  const int step = rounds_per_column(last_round(story), story.facilities.size());
  std::vector<Bar> bars;
  for (const FacilityName& name : story.facilities) {
    struct Rounds {
      int first, last, attempts, failed;
      double begin, end;
    };
    std::map<int, Rounds> groups;
    std::vector<Segment> segments;
    for (const AttemptStory& attempt : story.attempts) {
      if (attempt.facility != name || attempt.spans.empty()) continue;
      for (const Span& span : attempt.spans)
        segments.push_back(
            {axis->at(span.begin), axis->at(span.end), static_cast<int>(span.phase)});
      const double begin = axis->at(attempt.spans.front().begin);
      Rounds& group = groups
                          .try_emplace((attempt.round - 1) / step,
                                       Rounds{attempt.round, attempt.round, 0, 0, begin, begin})
                          .first->second;
      group.last = std::max(group.last, attempt.round);
      group.end = std::max(group.end, axis->at(attempt.spans.back().end));
      ++group.attempts;
      group.failed += attempt.outcome == Outcome::kFailed || attempt.outcome == Outcome::kLost;
    }
    Bar bar;
    bar.title = name.str();
    bar.segments = slices_of(segments);
    for (const auto& [index, group] : groups)
      bar.tooltips.push_back({group.begin, group.end,
                              rounds_title(group.first, group.last, group.attempts, group.failed)});
    bars.push_back(std::move(bar));
  }
  write_bars(html, bars, coordinator_marks(story, *axis));
}

std::string tooltip_of(const status::GlobalLoss& loss) {
  return "model " + std::to_string(loss.round) + ": " + loss_text(loss.nll) + " (perplexity " +
         perplexity_text(loss.nll) +
         (loss.accuracy > 0 ? ", accuracy " + accuracy_text(loss.accuracy) : "") + ")";
}

}  // namespace

size_t first_row(size_t rows, size_t cells) {
  const size_t shown = std::max<size_t>(50, 8000 / std::max<size_t>(1, cells));
  return rows - std::min(rows, shown);
}

void note_omitted_rows(HtmlWriter& html, size_t first) {
  if (first > 0)
    html.element(
        "p",
        "The first " + std::to_string(first) + " rows are left out: xffl report --json has them.",
        {{"class", "note"}});
}

void write_loss_figure(HtmlWriter& html, const RunStory& story) {
  std::map<ValidationSet, std::map<int, const status::GlobalLoss*>> sets;
  int last = 0;
  for (const status::GlobalLoss& loss : story.losses) {
    sets[{loss.facility, loss.set}][loss.round] = &loss;
    last = std::max(last, loss.round);
  }
  if (sets.empty()) return;
  figure_title(html, "Loss of the global model",
               "Nats per token by model, on each facility's validation sets; model 0 is the "
               "initial one. The dot is the lowest loss, a gap was not measured. All figures have "
               "the same vertical axis.");
  const int step = rounds_per_column(last + 1, sets.size());
  std::vector<Line> lines;
  for (const auto& [set, losses] : sets) {
    Line line;
    line.title = set.first.str() + " " + set.second;
    // A column of several models shows the last one that was measured.
    for (int round = 0; round <= last; round += step) {
      const status::GlobalLoss* shown = nullptr;
      for (int r = round; r < round + step; ++r)
        if (const auto found = losses.find(r); found != losses.end()) shown = found->second;
      line.values.push_back(shown == nullptr ? std::nullopt : std::optional(shown->nll));
      line.tooltips.push_back(shown == nullptr ? "" : tooltip_of(*shown));
    }
    if (step > 1) line.title += " (" + std::to_string(step) + " models per column)";
    line.last = last;
    lines.push_back(std::move(line));
  }
  write_small_multiples(html, lines, "model");
}

void write_effect_figure(HtmlWriter& html, const RunStory& story) {
  const auto accepted = accepted_of(story);
  std::vector<Effect> effects;
  for (const auto& [name, rounds] : accepted) {
    std::set<std::string> sets;
    for (const auto& [number, attempt] : rounds)
      if (attempt->report)
        for (const job::ValidationResult& result : attempt->report->validation)
          sets.insert(result.name);
    for (const std::string& set : sets) {
      Effect effect;
      effect.title = name.str() + " " + set;
      for (const auto& [number, attempt] : rounds) {
        const job::ValidationResult* result = result_of(*attempt, set);
        if (result == nullptr || attempt->report->steps == 0) continue;
        Effect::Round round{number, result->nll_before, std::nullopt, std::nullopt};
        if (job::is_measured_after(*attempt->report, *result)) round.trained = result->nll_after;
        if (const auto next = rounds.find(number + 1); next != rounds.end())
          if (const job::ValidationResult* after = result_of(*next->second, set))
            round.averaged = after->nll_before;
        effect.rounds.push_back(round);
      }
      if (!effect.rounds.empty()) effects.push_back(std::move(effect));
    }
  }
  if (effects.empty()) return;
  figure_title(
      html, "Effect of each round",
      "Loss of the model as the facility got it → after the facility's own training (solid "
      "line) → of the next global model (dashed line). A dashed line that rises is the "
      "part of the local gain that averaging gives back. The figure has the newest rounds.");
  const size_t newest = std::max<size_t>(50, 1000 / effects.size());
  std::vector<Effect> shown = effects;
  for (Effect& effect : shown)
    if (effect.rounds.size() > newest)
      effect.rounds.erase(effect.rounds.begin(),
                          effect.rounds.end() - static_cast<ptrdiff_t>(newest));
  write_effects(html, shown);
  std::vector<std::vector<std::string>> rows;
  for (const Effect& effect : effects)
    for (const Effect::Round& round : effect.rounds)
      rows.push_back({effect.title, std::to_string(round.round), measured(round.given),
                      measured(round.trained), measured(round.averaged)});
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto& a, const auto& b) { return std::stoi(a[1]) < std::stoi(b[1]); });
  const size_t first = first_row(rows.size(), 5);
  open_folded_table(html, "Table: effect of each round",
                    {"facility and set", "round", "given", "after training", "after averaging"},
                    first);
  for (size_t i = first; i < rows.size(); ++i) html.row(rows[i]);
  close_folded_table(html);
}

namespace {

// A number of each accepted update, as a row of shades per facility and as a table.
struct UpdateFigure {
  std::string title, note, table_title;
  std::optional<double> AttemptStory::*number;
  // The number that represents several rounds is the first of this order.
  bool (*stands_out_more)(double, double);
  std::function<double(double)> place;  // 0 (faint) .. 1 (strong)
  std::string (*text)(double);
};

using RoundsOf = std::map<FacilityName, std::map<int, const AttemptStory*>>;

Strip strip_of(const UpdateFigure& figure, const std::map<int, const AttemptStory*>& rounds,
               int last, int step) {
  Strip strip;
  for (int first = 1; first <= last; first += step) {
    std::optional<double> number;
    int shown = first;
    for (int round = first; round < first + step; ++round) {
      const auto found = rounds.find(round);
      if (found == rounds.end() || !(found->second->*figure.number)) continue;
      const double candidate = *(found->second->*figure.number);
      if (!number || figure.stands_out_more(candidate, *number)) {
        number = candidate;
        shown = round;
      }
    }
    strip.shades.push_back(
        number ? std::optional(std::clamp(static_cast<int>(7 * figure.place(*number)), 0, 6))
               : std::nullopt);
    strip.tooltips.push_back("round " + std::to_string(shown) + ": " +
                             (number ? figure.text(*number) : "not measured"));
  }
  return strip;
}

void write_update_figure(HtmlWriter& html, const RoundsOf& accepted, int last,
                         const UpdateFigure& figure) {
  figure_title(html, figure.title, figure.note);
  const int step = rounds_per_column(last, accepted.size());
  std::vector<Strip> strips;
  std::vector<std::string> titles = {"round"};
  for (const auto& [name, rounds] : accepted) {
    strips.push_back(strip_of(figure, rounds, last, step));
    strips.back().title = name.str();
    titles.push_back(name.str());
  }
  write_strips(html, strips);
  const size_t first_shown = first_row(static_cast<size_t>(last), titles.size());
  open_folded_table(html, figure.table_title, titles, first_shown);
  for (int number = 1 + static_cast<int>(first_shown); number <= last; ++number) {
    std::vector<std::string> cells = {std::to_string(number)};
    for (const auto& [name, rounds] : accepted) {
      const auto found = rounds.find(number);
      const bool is_measured = found != rounds.end() && (found->second->*figure.number);
      cells.push_back(is_measured ? figure.text(*(found->second->*figure.number)) : "not measured");
    }
    html.row(cells);
  }
  close_folded_table(html);
}

std::vector<double> measured_of(const RoundsOf& accepted,
                                std::optional<double> AttemptStory::*number) {
  std::vector<double> measured;
  for (const auto& [name, rounds] : accepted)
    for (const auto& [round, attempt] : rounds)
      if (attempt->*number) measured.push_back(*(attempt->*number));
  return measured;
}

}  // namespace

void write_change_figure(HtmlWriter& html, const RunStory& story) {
  const RoundsOf accepted = accepted_of(story);
  const std::vector<double> changes = measured_of(accepted, &AttemptStory::change);
  if (changes.empty()) {
    html.element("p", "The size of the updates was not measured.", {{"class", "note"}});
    return;
  }
  const auto [low, high] = std::minmax_element(changes.begin(), changes.end());
  write_update_figure(
      html, accepted, last_round(story),
      {.title = "Size of each update",
       .note = "L2 norm of the update's change over the norm of its model, by round; seven shades "
               "on a logarithmic scale from " +
               scientific(*low) + " (faint) to " + scientific(*high) +
               " (strong). A cell much stronger than its neighbours is an outlier.",
       .table_title = "Table: size of each update",
       .number = &AttemptStory::change,
       .stands_out_more = [](double a, double b) { return a > b; },
       .place =
           [low = *low, high = *high](double change) {
             return high > low ? std::log(change / low) / std::log(high / low) : 0;
           },
       .text = scientific});
}

void write_direction_figure(HtmlWriter& html, const RunStory& story) {
  const RoundsOf accepted = accepted_of(story);
  if (measured_of(accepted, &AttemptStory::cosine).empty()) {
    html.element("p",
                 "The directions of the updates were not measured: this needs rounds with two or "
                 "more updates and aggregation.update: delta.",
                 {{"class", "note"}});
    return;
  }
  write_update_figure(
      html, accepted, last_round(story),
      {.title = "Direction of each update",
       .note =
           "Cosine between the update and the sum of the round's other updates, by round; seven "
           "shades from 1 (faint: the same direction) over 0 (unrelated) to -1 (strong: against "
           "the others). Below 0 the average takes back what the facility has learned.",
       .table_title = "Table: direction of each update",
       .number = &AttemptStory::cosine,
       .stands_out_more = [](double a, double b) { return a < b; },
       .place = [](double cosine) { return (1 - cosine) / 2; },
       .text = [](double cosine) { return fixed(cosine, 2); }});
}

void write_step_figure(HtmlWriter& html, const RunStory& story) {
  if (story.step_losses.empty()) {
    html.element("p", "The loss of single steps is not known: the run folder has no metrics.",
                 {{"class", "note"}});
    return;
  }
  figure_title(html, "Training loss by step",
               "Loss of each optimizer step of the accepted attempts: the mean of up to 240 groups "
               "of steps, in a band from the lowest to the highest step of the group.");
  constexpr size_t kGroups = 240;
  std::vector<Envelope> envelopes;
  for (const auto& [name, losses] : story.step_losses) {
    if (losses.empty()) continue;
    Envelope envelope;
    envelope.title = name.str();
    envelope.first_label = "step " + std::to_string(losses.front().step);
    envelope.last_label = std::to_string(losses.back().step);
    const size_t groups = std::min(kGroups, losses.size());
    for (size_t g = 0; g < groups; ++g) {
      const size_t begin = g * losses.size() / groups, end = (g + 1) * losses.size() / groups;
      Envelope::Point point{100.0 * (static_cast<double>(g) + 0.5) / static_cast<double>(groups),
                            losses[begin].loss, losses[begin].loss, 0};
      for (size_t i = begin; i < end; ++i) {
        point.low = std::min(point.low, losses[i].loss);
        point.high = std::max(point.high, losses[i].loss);
        point.mean += losses[i].loss / static_cast<double>(end - begin);
      }
      envelope.points.push_back(point);
    }
    envelopes.push_back(std::move(envelope));
  }
  write_envelopes(html, envelopes);
  open_folded_table(html, "Table: training loss by step",
                    {"facility", "steps on record", "first", "lowest", "last"});
  for (const auto& [name, losses] : story.step_losses) {
    if (losses.empty()) continue;
    const StepLoss& lowest =
        *std::min_element(losses.begin(), losses.end(),
                          [](const StepLoss& a, const StepLoss& b) { return a.loss < b.loss; });
    html.row({name.str(), std::to_string(losses.size()), loss_text(losses.front().loss),
              loss_text(lowest.loss) + " at step " + std::to_string(lowest.step),
              loss_text(losses.back().loss)});
  }
  close_folded_table(html);
}

void write_share_figure(HtmlWriter& html, const RunStory& story) {
  const double elapsed = count(story.elapsed());
  if (!(elapsed > 0) || story.attempts.empty()) return;
  figure_title(html, "Shares of the elapsed time",
               "Each bar is the elapsed time of the run; its empty part is time without an attempt "
               "of the facility: between rounds, in pauses, or without a coordinator.");
  phase_legend(html, story);
  std::vector<Bar> bars;
  for (const FacilityName& name : story.facilities) {
    Bar bar;
    bar.title = name.str();
    double at = 0;
    for (const auto& [phase, time] : time_by_phase(story, name)) {
      const double end = std::min(100.0, at + 100 * count(time) / elapsed);
      bar.segments.push_back({at, end, static_cast<int>(phase)});
      bar.tooltips.push_back({at, end,
                              std::string(name_of(phase)) + ": " + duration_text(time) + ", " +
                                  percent_text(count(time) / elapsed)});
      at = end;
    }
    bars.push_back(std::move(bar));
  }
  write_bars(html, bars);
}

void write_round_figure(HtmlWriter& html, const RunStory& story) {
  struct Column {
    const RoundStory* round;
    nanoseconds took{0};
    std::vector<Span> spans;
  };
  std::vector<Column> columns;
  std::map<FacilityName, int> last_in;
  nanoseconds longest{0};
  for (const auto& [number, round] : story.rounds) {
    if (!round.planned || !round.published || !round.last) continue;
    ++last_in[*round.last];
    Column column{&round, *round.published - *round.planned, {}};
    for (const AttemptStory& attempt : story.attempts)
      if (attempt.round == number && attempt.facility == *round.last)
        for (const Span& span : attempt.spans)
          if (span.phase != Phase::kWaiting) column.spans.push_back(span);
    longest = std::max(longest, column.took);
    columns.push_back(std::move(column));
  }
  if (columns.empty() || longest.count() <= 0) return;
  const size_t step = (columns.size() + 499) / 500;
  figure_title(
      html, "Duration of each round",
      "One column per round, with the phases of the facility whose update came last; "
      "its grey part is time without an attempt of this facility, and the mean. A dashed line: a "
      "coordinator began." +
          (step > 1 ? " Every " + std::to_string(step) + "th round is shown." : std::string()));
  std::vector<Bar> bars;
  for (size_t i = 0; i < columns.size(); i += step) {
    const Column& column = columns[i];
    Bar bar;
    bar.title = "round " + std::to_string(column.round->number);
    bar.whole = 100 * count(column.took) / count(longest);
    double at = 0;
    for (const Span& span : column.spans) {
      const double end = at + 100 * count(span.end - span.begin) / count(longest);
      bar.segments.push_back({at, std::min(100.0, end), static_cast<int>(span.phase)});
      at = std::min(100.0, end);
    }
    bar.tooltips.push_back({0, 100,
                            bar.title + ": " + duration_text(column.took) + ", " +
                                column.round->last->str() + " came last"});
    bars.push_back(std::move(bar));
  }
  std::vector<size_t> marks;
  for (const CoordinatorStory& coordinator : story.coordinators)
    for (size_t i = 0; i < columns.size(); ++i)
      if (coordinator.began <= *columns[i].round->published) {
        if (i > 0 || coordinator.began >= *columns[i].round->planned) marks.push_back(i / step);
        break;
      }
  marks.erase(std::unique(marks.begin(), marks.end()), marks.end());
  write_columns(html, bars, duration_text(longest), marks);
  open_folded_table(html, "Table: facilities that came last", {"facility", "came last in rounds"});
  for (const auto& [name, rounds] : last_in) html.row({name.str(), std::to_string(rounds)});
  close_folded_table(html);
}

void write_timeline(HtmlWriter& html, const RunStory& story) {
  constexpr int kRounds = 10;
  const int last = last_round(story);
  const int first = std::max(1, last - kRounds + 1);
  const std::optional<TimeAxis> axis = time_axis(story, first);
  if (first > 1) write_overview(html, story);
  if (!axis) return;
  figure_title(html, "Rounds " + std::to_string(first) + " to " + std::to_string(last) + " by time",
               "From " + format_utc(axis->begin) + " to " + format_utc(axis->end) +
                   ". A dashed line: a coordinator began.");
  std::vector<Bar> bars;
  for (const FacilityName& name : story.facilities) {
    Bar bar;
    bar.title = name.str();
    for (const AttemptStory& attempt : story.attempts) {
      if (attempt.facility != name || attempt.round < first || attempt.spans.empty()) continue;
      for (const Span& span : attempt.spans)
        bar.segments.push_back(
            {axis->at(span.begin), axis->at(span.end), static_cast<int>(span.phase)});
      bar.tooltips.push_back({axis->at(attempt.spans.front().begin),
                              axis->at(attempt.spans.back().end), attempt_title(attempt)});
    }
    bars.push_back(std::move(bar));
  }
  write_bars(html, bars, coordinator_marks(story, *axis));
  const size_t first_shown = first_row(story.attempts.size(), 8);
  open_folded_table(html, "Table: all attempts",
                    {"round", "facility", "attempt", "job", "outcome", "began", "took",
                     "steps took", "sent", "change"},
                    first_shown);
  for (size_t i = first_shown; i < story.attempts.size(); ++i) {
    const AttemptStory& attempt = story.attempts[i];
    const bool is_over = attempt.opened && attempt.ended;
    html.row({std::to_string(attempt.round), attempt.facility.str(), std::to_string(attempt.number),
              attempt.job_id.empty() ? "-" : attempt.job_id, std::string(name_of(attempt.outcome)),
              attempt.opened ? format_utc(*attempt.opened).substr(0, 19) : "-",
              is_over ? duration_text(*attempt.ended - *attempt.opened) : "-",
              attempt.report && attempt.report->train_seconds > 0
                  ? duration_text(std::chrono::duration_cast<nanoseconds>(
                        std::chrono::duration<double>(attempt.report->train_seconds)))
                  : "not known",
              attempt.pushed ? bytes_text(static_cast<double>(attempt.moved_bytes)) : "-",
              attempt.change ? scientific(*attempt.change) : "not measured"});
  }
  close_folded_table(html);
}

void write_sent(HtmlWriter& html, const RunStory& story) {
  struct Sent {
    double bytes = 0, saved = 0, timed_bytes = 0, seconds = 0;
  };
  std::map<FacilityName, Sent> sent;
  for (const AttemptStory& attempt : story.attempts) {
    if (!attempt.pushed) continue;
    Sent& sum = sent[attempt.facility];
    const double bytes = static_cast<double>(attempt.moved_bytes);
    sum.bytes += bytes;
    if (attempt.whole_bytes > 0)
      sum.saved += std::max(0.0, static_cast<double>(attempt.whole_bytes) - bytes);
    if (attempt.push_seconds && *attempt.push_seconds > 0) {
      sum.timed_bytes += bytes;
      sum.seconds += *attempt.push_seconds;
    }
  }
  if (sent.empty()) return;
  open_folded_table(html, "Table: models sent to the facilities",
                    {"facility", "sent", "saved by packing", "rate"});
  for (const auto& [name, sum] : sent)
    html.row({name.str(), bytes_text(sum.bytes), bytes_text(sum.saved),
              sum.seconds > 0 ? bytes_text(sum.timed_bytes / sum.seconds) + "/s" : "not measured"});
  close_folded_table(html);
}

}  // namespace xffl::report
