#include "partition_limit.h"

#include <algorithm>
#include <charconv>
#include <sstream>
#include <vector>

namespace xffl {
namespace {

std::optional<long> number(std::string_view digits) {
  long value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size() || value < 0 || value > 1000000)
    return std::nullopt;
  return value;
}

bool is_among(std::string_view name, std::string_view partitions) {
  return ("," + std::string(partitions) + ",").find("," + std::string(name) + ",") !=
         std::string::npos;
}

}  // namespace

std::optional<std::chrono::seconds> slurm_time(std::string_view text) {
  long days = 0;
  if (const size_t dash = text.find('-'); dash != std::string_view::npos) {
    const auto parsed = number(text.substr(0, dash));
    if (!parsed) return std::nullopt;
    days = *parsed;
    text.remove_prefix(dash + 1);
  }
  std::vector<long> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(':', begin), text.size());
    const auto parsed = number(text.substr(begin, end - begin));
    if (!parsed) return std::nullopt;
    parts.push_back(*parsed);
    begin = end + 1;
  }
  if (parts.size() > 3) return std::nullopt;
  if (parts.size() == 1) return std::chrono::minutes(days * 1440 + parts[0]);
  const long hours = parts.size() == 3 ? parts[0] : 0;
  return std::chrono::hours(days * 24 + hours) + std::chrono::minutes(parts[parts.size() - 2]) +
         std::chrono::seconds(parts.back());
}

std::optional<std::chrono::seconds> longest_walltime(std::string_view sinfo,
                                                     std::string_view partitions) {
  std::optional<std::chrono::seconds> longest;
  std::istringstream lines{std::string(sinfo)};
  for (std::string name, limit; lines >> name >> limit;) {
    const bool is_default = name.ends_with('*');
    if (is_default) name.pop_back();
    if (partitions.empty() ? !is_default : !is_among(name, partitions)) continue;
    const auto time = slurm_time(limit);
    if (!time) return std::nullopt;
    longest = std::max(longest.value_or(std::chrono::seconds(0)), *time);
  }
  return longest;
}

}  // namespace xffl
