// The colours of the figures, in the order of the phases, for a light and for a dark background.
//
// A test computes the contrast of each colour and the distance of each pair, also for colour-blind
// readers, and compares the colours with the style sheet.
#pragma once

#include <array>
#include <string_view>

namespace xffl::report {

struct Palette {
  std::string_view background, text, dim, mark, warning;
  std::array<std::string_view, 8> phases;
};

inline constexpr Palette kLight{
    "#ffffff",
    "#1b1f24",
    "#57606a",
    "#0b5cad",
    "#9a3412",
    {"#794000", "#6a59ff", "#00a46d", "#2a0960", "#793ead", "#405370", "#ff0551", "#9084c3"}};
inline constexpr Palette kDark{
    "#0d1117",
    "#e6edf3",
    "#9aa4af",
    "#6cb6ff",
    "#ffb386",
    {"#d29922", "#3869d2", "#3ecd98", "#dce8f8", "#99b8ff", "#ae9ebb", "#ff5d60", "#8f4884"}};

}  // namespace xffl::report
