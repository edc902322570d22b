#include "numbers.h"

#include <array>
#include <cmath>
#include <cstdio>

namespace xffl::report {
namespace {

template <class... Values>
std::string format(const char* how, Values... values) {
  std::array<char, 400> text;
  std::snprintf(text.data(), text.size(), how, values...);
  return text.data();
}

}  // namespace

std::string loss_text(double nll) { return format("%.4f", nll); }

std::string perplexity_text(double nll) {
  const double perplexity = std::exp(nll);
  return format(perplexity < 1e5 ? "%.2f" : "%.1e", perplexity);
}

std::string accuracy_text(double share) { return share > 0 ? format("%.4f", share) : ""; }

std::string duration_text(std::chrono::nanoseconds duration) {
  const long long s = std::chrono::duration_cast<std::chrono::seconds>(duration).count();
  if (s < 100) return format("%lld s", s);
  if (s < 100 * 60) return format("%lld min", s / 60);
  if (s < 48 * 3600) return format("%lld h %lld min", s / 3600, s / 60 % 60);
  return format("%lld d %lld h", s / 86400, s / 3600 % 24);
}

std::string bytes_text(double bytes) {
  if (bytes < 1e3) return format("%.0f B", bytes);
  if (bytes < 1e6) return format("%.1f kB", bytes / 1e3);
  if (bytes < 1e9) return format("%.1f MB", bytes / 1e6);
  if (bytes < 1e12) return format("%.1f GB", bytes / 1e9);
  return format("%.2f TB", bytes / 1e12);
}

std::string percent_text(double share) { return format("%.1f %%", 100 * share); }

std::string fixed(double value, int digits) { return format("%.*f", digits, value); }

std::string scientific(double value) { return format("%.1e", value); }

}  // namespace xffl::report
