#include "suggest.h"

#include <algorithm>
#include <vector>

namespace xffl::config {
namespace {

/// The optimal string alignment distance, without regard to case and to '-' against '_'.
size_t distance(std::string_view a, std::string_view b) {
  const auto same = [](char x, char y) {
    const auto fold = [](char c) {
      return c == '-' ? '_' : c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    };
    return fold(x) == fold(y);
  };
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), now(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    now[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      now[j] =
          std::min({last[j] + 1, now[j - 1] + 1, last[j - 1] + (same(a[i - 1], b[j - 1]) ? 0 : 1)});
      if (i > 1 && j > 1 && same(a[i - 1], b[j - 2]) && same(a[i - 2], b[j - 1]))
        now[j] = std::min(now[j], before[j - 2] + 1);
    }
    before.swap(last);
    last.swap(now);
  }
  return last[b.size()];
}

bool is_part(std::string_view text, std::string_view whole) {
  return text.size() >= 4 && whole.find(text) != std::string_view::npos;
}

}  // namespace

std::string nearest(std::string_view text, std::span<const std::string_view> candidates) {
  if (text.size() > 100) return {};
  std::string_view best;
  size_t best_distance = std::max<size_t>(1, std::min<size_t>(3, text.size() / 3)) + 1;
  for (const std::string_view candidate : candidates) {
    const size_t steps = distance(text, candidate);
    if (steps < best_distance) {
      best = candidate;
      best_distance = steps;
    }
  }
  for (const std::string_view candidate : candidates)
    if (best.empty() && (is_part(text, candidate) || is_part(candidate, text))) best = candidate;
  return std::string(best);
}

std::string did_you_mean(std::string_view text, std::span<const std::string_view> candidates) {
  const std::string meant = nearest(text, candidates);
  return meant.empty() ? "" : ": did you mean '" + meant + "'?";
}

}  // namespace xffl::config
