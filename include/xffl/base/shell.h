// Quoting for a POSIX shell: the one function of the whole program that does it.
//
// A command is an argument vector everywhere; only where a shell must read it (a job script, a
// remote log-in) does each word go through here. tests/submit/ checks it against real shells.
#pragma once

#include <string>
#include <string_view>

#include "xffl/base/error.h"

namespace xffl {

/// `text` as one word. Words of harmless characters stay as they are; the rest is put in single
/// quotes. Throws kConfig for a NUL, which no shell word can hold.
inline std::string quote_for_shell(std::string_view text) {
  if (text.find('\0') != std::string_view::npos)
    throw Error(ErrorKind::kConfig, "a text for a shell holds a NUL character");
  constexpr std::string_view kHarmless =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./:@%+,-";
  if (!text.empty() && text.find_first_not_of(kHarmless) == std::string_view::npos)
    return std::string(text);
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\'')
      quoted += "'\\''";
    else
      quoted += c;
  }
  return quoted + "'";
}

}  // namespace xffl
