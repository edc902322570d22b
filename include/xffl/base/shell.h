// Quoting for a POSIX shell; no other code quotes.
//
// A command is an argument vector everywhere. xffl quotes the words only where a shell must read
// the command: in a job script and in a remote login shell. tests/submit/ runs real shells on
// quoted words.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "xffl/base/error.h"

namespace xffl {

/// Returns `text` as one shell word. Leaves words of plain characters unchanged and puts other
/// words in single quotes. Throws kConfig for a NUL, which no shell word can hold.
inline std::string quote_for_shell(std::string_view text) {
  if (text.find('\0') != std::string_view::npos)
    throw Error(ErrorKind::kConfig, "a text for a shell holds a NUL character");
  constexpr std::string_view kPlain =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./:@%+,-";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string_view::npos)
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

/// Returns the command line of an argument vector: the quoted words, joined by blanks.
inline std::string quote_argv_for_shell(const std::vector<std::string>& argv) {
  std::string line;
  for (const std::string& word : argv) line += (line.empty() ? "" : " ") + quote_for_shell(word);
  return line;
}

}  // namespace xffl
