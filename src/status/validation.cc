#include "xffl/status/validation.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

namespace xffl::status {
namespace {

constexpr size_t kLineWidth = 80;
constexpr size_t kRoundWidth = 7;
constexpr size_t kCellWidth = 18;  // "4.5321 (92.97)", "12.3456 (2.3e+05)"

using Set = std::pair<std::string, std::string>;  // facility, name

std::string cell(double nll) {
  char text[64];
  const double perplexity = std::exp(nll);
  std::snprintf(text, sizeof text, perplexity < 1e5 ? "%.4f (%.2f)" : "%.4f (%.1e)", nll,
                perplexity);
  return text;
}

std::string title(const Set& set) { return set.first + " " + set.second; }

size_t width(const Set& set) { return std::max(title(set).size(), kCellWidth) + 2; }

std::string right(const std::string& text, size_t width) {
  return std::string(width - std::min(width, text.size()), ' ') + text;
}

// The end of the sets from `begin` on that fit in a line; at least one.
std::vector<Set>::const_iterator fitting(std::vector<Set>::const_iterator begin,
                                         std::vector<Set>::const_iterator end) {
  size_t used = kRoundWidth;
  auto it = begin;
  do used += width(*it++);
  while (it != end && used + width(*it) <= kLineWidth);
  return it;
}

}  // namespace

std::vector<GlobalLoss> global_losses(const history::RunState& run_state) {
  std::vector<GlobalLoss> losses;
  for (const auto& [number, round] : run_state.rounds)
    for (const auto& [name, facility] : round.facilities) {
      if (!facility.accepted) continue;
      for (const job::ValidationResult& set : facility.accepted->report.validation)
        losses.push_back({number - 1, name, set.name, set.tokens, set.nll_before});
    }
  return losses;
}

std::string format_global_losses(const history::RunState& run_state) {
  std::vector<Set> sets;
  std::map<int, std::map<Set, double>> rows;
  for (const GlobalLoss& loss : global_losses(run_state)) {
    const Set set{loss.facility.str(), loss.set};
    if (std::find(sets.begin(), sets.end(), set) == sets.end()) sets.push_back(set);
    rows[loss.round][set] = loss.nll;
  }
  if (sets.empty()) return "";
  std::sort(sets.begin(), sets.end());
  for (int round = 0; round <= run_state.done().rounds_published; ++round) rows[round];
  std::string text = "global model: loss (perplexity)\n";
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

}  // namespace xffl::status
