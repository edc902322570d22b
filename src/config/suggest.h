// "Did you mean ...?"
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace xffl::config {

/// The candidate that `text` was most likely meant to be, or an empty string when none is near:
/// by the number of letters inserted, lost, changed or swapped with their neighbour.
std::string nearest(std::string_view text, std::span<const std::string_view> candidates);

/// ": did you mean 'x'?", or nothing.
std::string did_you_mean(std::string_view text, std::span<const std::string_view> candidates);

}  // namespace xffl::config
