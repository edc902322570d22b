#include "scalars.h"

#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <span>

namespace xffl::config {
namespace {

struct Unit {
  std::string_view name;
  int64_t factor;
};

// Units in ascending order.
constexpr std::array<Unit, 5> kDurations{
    {{"ms", 1}, {"s", 1000}, {"m", 60'000}, {"h", 3'600'000}, {"d", 86'400'000}}};
constexpr std::array<Unit, 9> kSizes{{{"B", 1},
                                      {"kB", 1000},
                                      {"KiB", 1LL << 10},
                                      {"MB", 1'000'000},
                                      {"MiB", 1LL << 20},
                                      {"GB", 1'000'000'000},
                                      {"GiB", 1LL << 30},
                                      {"TB", 1'000'000'000'000},
                                      {"TiB", 1LL << 40}}};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

size_t count_digits(std::string_view text) {
  size_t n = 0;
  while (n < text.size() && is_digit(text[n])) ++n;
  return n;
}

std::optional<int64_t> parse_with_unit(std::string_view text, std::span<const Unit> units) {
  if (text == "0") return 0;
  const size_t digits = count_digits(text);
  const auto number = parse_integer(text.substr(0, digits));
  if (!number) return std::nullopt;
  std::string_view unit = text.substr(digits);
  if (unit.starts_with(' ')) unit.remove_prefix(1);
  for (const Unit& known : units) {
    if (unit != known.name) continue;
    if (*number > std::numeric_limits<int64_t>::max() / known.factor) return std::nullopt;
    return *number * known.factor;
  }
  return std::nullopt;
}

std::string format_with_unit(int64_t value, std::span<const Unit> units, std::string_view zero) {
  if (value == 0) return std::string(zero);
  const Unit* best = &units.front();
  for (const Unit& unit : units)
    if (value % unit.factor == 0) best = &unit;
  return std::to_string(value / best->factor) + std::string(best->name);
}

}  // namespace

std::optional<int64_t> parse_integer(std::string_view text) {
  const std::string_view digits = text.starts_with('-') ? text.substr(1) : text;
  if (digits.empty() || count_digits(digits) != digits.size()) return std::nullopt;
  if (digits.size() > 1 && digits.front() == '0') return std::nullopt;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<double> parse_number(std::string_view text) {
  std::string_view rest = text.starts_with('-') ? text.substr(1) : text;
  const size_t whole = count_digits(rest);
  if (whole == 0 || (whole > 1 && rest.front() == '0')) return std::nullopt;
  rest.remove_prefix(whole);
  if (rest.starts_with('.')) {
    const size_t fraction = count_digits(rest.substr(1));
    if (fraction == 0) return std::nullopt;
    rest.remove_prefix(1 + fraction);
  }
  if (rest.starts_with('e') || rest.starts_with('E')) {
    rest.remove_prefix(1);
    if (rest.starts_with('+') || rest.starts_with('-')) rest.remove_prefix(1);
    if (rest.empty() || count_digits(rest) != rest.size()) return std::nullopt;
    rest = {};
  }
  if (!rest.empty()) return std::nullopt;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value))
    return std::nullopt;
  return value;
}

std::optional<bool> parse_boolean(std::string_view text) {
  if (text == "true") return true;
  if (text == "false") return false;
  return std::nullopt;
}

std::optional<std::chrono::milliseconds> parse_duration(std::string_view text) {
  const auto value = parse_with_unit(text, kDurations);
  if (!value) return std::nullopt;
  return std::chrono::milliseconds(*value);
}

std::optional<int64_t> parse_size(std::string_view text) { return parse_with_unit(text, kSizes); }

std::string integer_hint(std::string_view text) {
  if (text.size() > 1 && text.front() == '0' && count_digits(text) == text.size()) {
    const size_t first = text.find_first_not_of('0');
    return "write " + std::string(first == std::string_view::npos ? "0" : text.substr(first)) +
           " without leading zeros";
  }
  if (text.starts_with("0x") || text.starts_with("0o") || text.starts_with("0b"))
    return "write it in decimal digits";
  std::string digits;
  for (const char c : text)
    if (c != '_' && c != ',' && c != '\'') digits += c;
  if (digits != text && parse_integer(digits)) return "write " + digits;
  return {};
}

std::string format_number(double value) {
  std::array<char, 64> buffer{};
  const auto result = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  return {buffer.data(), result.ptr};
}

std::string format_duration(std::chrono::milliseconds value) {
  return format_with_unit(value.count(), kDurations, "0s");
}

std::string format_size(int64_t bytes) { return format_with_unit(bytes, kSizes, "0B"); }

}  // namespace xffl::config
