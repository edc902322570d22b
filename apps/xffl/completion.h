// The completion of a command line, for the scripts of `xffl completion`.
//
// The script of a shell passes the words of its command line to the hidden command
// `xffl complete-words WORD...` and gets a candidate per line, so the command tree and the project
// have one reader for all shells. A candidate consists of letters, digits and "-_.,=+": no shell
// has to quote it.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace xffl {

inline constexpr const char* kCompleteWords = "complete-words";

struct Candidate {
  std::string text;
  std::string description;  // may be empty
};

struct Completion {
  std::vector<Candidate> candidates;
  bool files = false;    // files and folders are candidates, too
  bool folders = false;  // folders are candidates, too
};

/// The candidates for the last word of `words`, the command line without the program's name. bash
/// splits a word at '='. Reads the xffl.yaml and lists the runs/ that the words name. An invalid
/// project has no candidates; no error is reported.
Completion complete(const CLI::App& app, std::vector<std::string> words);

/// "TEXT\tDESCRIPTION" per candidate, then ":files" or ":folders".
std::string format_completion(const Completion& completion);

}  // namespace xffl
