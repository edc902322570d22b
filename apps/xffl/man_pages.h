// The manual pages of the command tree, in the man(7) macros of roff.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace CLI {
class App;
}

namespace xffl::manual {

/// Text that roff prints as it is: no control line, no escape. A code span in backticks becomes
/// bold.
std::string roff(std::string_view text);

/// A page for `app` and one for each command below, by file name: "xffl.1", "xffl-run.1". The page
/// of a command contains the commands below. The page of `app` has the exit codes of its section
/// in `exit_codes`, the Markdown of docs/reference/exit_codes.md. Throws kInternal without such a
/// section.
std::map<std::string, std::string> man_pages(const CLI::App& app, std::string_view exit_codes);

}  // namespace xffl::manual
