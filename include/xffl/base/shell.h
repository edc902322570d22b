// Quoting for a POSIX shell; no other code quotes.
//
// A command is an argument vector everywhere. Only commands for a shell (a job script, a remote
// login) are quoted, word by word. tests/submit/ checks the quoting against real shells.
#pragma once

#include <string>
#include <string_view>

#include "xffl/base/error.h"

namespace xffl {

/// `text` as one shell word. Words of harmless characters stay unchanged; other words are put in
/// single quotes. Throws kConfig for a NUL, which no shell word can hold.
inline std::string quote_for_shell(std::string_view text) {
  if (text.find('\0') != std::string_view::npos)
    throw Error(ErrorKind::kConfig, "a shell argument holds a NUL character");
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
