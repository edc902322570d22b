// The names of enumerators in files and on command lines, from one table per enumeration.
//
// The table stands beside the enumeration, so that a new value is one edit:
//
//   enum class Offload { kNone, kOptimizer };
//   constexpr auto names_of(Offload) { return enum_names("none", "optimizer"); }
//
// The names are in the order of the enumerators, from 0. A namespace with a NamedEnum declares
// `using xffl::to_string;`.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <type_traits>

namespace xffl {

template <class... Texts>
constexpr std::array<std::string_view, sizeof...(Texts)> enum_names(Texts... names) {
  return {names...};
}

template <class Enum>
concept NamedEnum = std::is_enum_v<Enum> && requires(Enum value) {
  names_of(value);
};

template <NamedEnum Enum>
constexpr std::string_view to_string(Enum value) {
  return names_of(value).at(static_cast<size_t>(value));
}

/// The inverse of to_string; empty when `text` is none of the names.
template <NamedEnum Enum>
constexpr std::optional<Enum> parse_enum(std::string_view text) {
  const auto names = names_of(Enum{});
  const auto found = std::find(names.begin(), names.end(), text);
  if (found == names.end()) return std::nullopt;
  return static_cast<Enum>(found - names.begin());
}

}  // namespace xffl
