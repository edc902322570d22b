// The table of the state machine: complete, as the machine behaves, and as docs/developer/ shows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <string>

#include "random_walk.h"
#include "xffl/base/file.h"
#include "xffl/facility/machine.h"

namespace xffl::facility {
namespace {

using Names = std::set<std::string>;
using Pair = std::pair<std::string, std::string>;
using Edge = std::tuple<std::string, std::string, std::string>;  // from, cause, to

constexpr uint64_t kWalks = 6000;

bool is_event(std::string_view cause) { return cause != kNextAction && cause != kTimeIsUp; }

// The events that may answer an action: see FacilityDriver::Parts::perform.
Names answers(const Action& action) {
  Names names = {"Unreachable", "AuthRequired"};
  if (std::holds_alternative<Push>(action)) names.insert("Pushed");
  if (std::holds_alternative<Submit>(action))
    names.insert({"Submitted", "SubmitRejected", "SubmitDeferred", "SubmitUnknown"});
  if (std::holds_alternative<FindJobs>(action)) names.insert("Found");
  if (std::holds_alternative<Poll>(action)) names.insert("Polled");
  if (std::holds_alternative<FetchUpdate>(action))
    names.insert({"Fetched", "UpdateRejected", "Checkpointed"});
  if (std::holds_alternative<CancelJob>(action) || std::holds_alternative<Fence>(action))
    names.insert("Completed");
  if (std::holds_alternative<Sleep>(action)) return {"TimerFired"};
  if (std::holds_alternative<Finish>(action)) return {};
  return names;
}

// The observations of 6,000 walks.
struct Observed {
  std::set<Pair> pairs;  // a phase, and an event that may come in it
  std::set<Edge> edges;
};

void note(Observed& all, const Step& step) {
  for (const PhaseChange& change : step.path)
    all.edges.insert({std::string(change.from), std::string(change.cause), std::string(change.to)});
}

const Observed& observed() {
  static const Observed kObserved = [] {
    Observed all;
    all.pairs.insert({"Idle", "Resumed"});
    for (uint64_t seed = 1; seed <= kWalks; ++seed)
      test::walk(seed, [&](const Phase&, const Event&, const Step& step) {
        for (const std::string& event : answers(step.action))
          all.pairs.insert({std::string(name_of(step.machine.phase)), event});
        note(all, step);
        // `xffl run` on a round that is done.
        if (std::holds_alternative<Finish>(step.action))
          note(all, facility::step({}, {step.machine.known, {}, {}, {}}, Resumed{}, {}));
      });
    return all;
  }();
  return kObserved;
}

TEST(MachineTable, EveryEventThatMayComeInAPhaseHasARow) {
  std::set<Pair> rows;
  for (const Transition& row : transitions()) {
    if (!is_event(row.cause)) continue;
    const bool is_first = rows.insert({std::string(row.phase), std::string(row.cause)}).second;
    EXPECT_TRUE(is_first) << row.phase << ", " << row.cause << " has two rows";
  }
  EXPECT_EQ(rows, observed().pairs);
}

TEST(MachineTable, ThePhaseChangesAreThoseOfTheMachine) {
  std::set<Edge> rows;
  for (const Transition& row : transitions())
    for (const Target& next : row.next)
      rows.insert({std::string(row.phase), std::string(row.cause), std::string(next.phase)});
  EXPECT_EQ(rows, observed().edges);
}

TEST(MachineTable, EveryPhaseIsReachedAndLeft) {
  Names entered = {"Idle"}, left = {"Finished"};
  for (const Transition& row : transitions())
    for (const Target& next : row.next) {
      left.emplace(row.phase);
      entered.emplace(next.phase);
    }
  for (const std::string_view phase : phase_names()) {
    EXPECT_TRUE(entered.contains(std::string(phase))) << phase;
    EXPECT_TRUE(left.contains(std::string(phase))) << phase;
  }
}

// --- The diagram ---

// Phases that a lack of time leads to Closing are drawn as one state around them.
std::string diagram() {
  constexpr std::string_view kOpen = "Open";
  std::set<std::string_view> open;
  for (const Transition& row : transitions())
    if (row.cause == kTimeIsUp && row.next.front().phase == "Closing") open.insert(row.phase);
  std::vector<std::pair<std::string, std::string>> arrows;  // and their labels
  const auto draw = [&](std::string_view from, std::string_view to, const std::string& label) {
    const bool inner = open.contains(from) && open.contains(to);
    const std::string arrow =
        (inner ? "    " : "  ") + std::string(from) + " --> " + std::string(to);
    const auto drawn = std::find_if(arrows.begin(), arrows.end(),
                                    [&](const auto& each) { return each.first == arrow; });
    if (drawn == arrows.end())
      arrows.emplace_back(arrow, label);
    else if (drawn->second.find(label) == std::string::npos)
      drawn->second += ", " + label;
  };
  for (const Transition& row : transitions())
    for (const Target& next : row.next) {
      std::string label(row.cause == kNextAction ? next.when : row.cause);
      if (row.cause != kNextAction && !next.when.empty())
        label += " (" + std::string(next.when) + ")";
      const bool is_open = row.cause == kTimeIsUp && open.contains(row.phase);
      draw(is_open ? kOpen : row.phase, next.phase, label);
    }
  std::string inner, outer;
  for (const auto& [arrow, label] : arrows)
    (arrow.starts_with("    ") ? inner : outer) += arrow + ": " + label + "\n";
  return "```mermaid\nstateDiagram-v2\n  [*] --> Idle\n  state " + std::string(kOpen) + " {\n" +
         inner + "  }\n" + outer + "  Finished --> [*]\n```\n";
}

TEST(MachineTable, TheDiagramInTheDocumentationIsTheTables) {
  const std::filesystem::path page =
      std::filesystem::path(XFFL_SOURCE_DIR) / "docs/developer/state_machine.md";
  const std::string text = read_file(page, 1 << 20);
  const size_t begin = text.find("```mermaid\n"), end = text.find("```\n", begin + 1);
  ASSERT_NE(begin, std::string::npos);
  ASSERT_NE(end, std::string::npos);
  const std::string shown = text.substr(begin, end + 4 - begin);
  if (shown != diagram() && std::getenv("XFFL_ACCEPT") != nullptr)
    return write_file_atomic(page, text.substr(0, begin) + diagram() + text.substr(end + 4));
  EXPECT_EQ(shown, diagram()) << "XFFL_ACCEPT=1 rewrites " << page;
  for (const std::string_view phase : phase_names())
    EXPECT_THAT(text, testing::HasSubstr("**" + std::string(phase) + ".**"))
        << "each phase has a paragraph";
}

}  // namespace
}  // namespace xffl::facility
