// Job scripts from strict templates.
//
//   {{name}}          replaced by the value; a name without a value is an error with its line
//   {{lines name}}    alone on a line: one line per item of a list value, none for an empty list
//   {{quote name}}    replaced by the value as one quoted word of a POSIX shell
//   {{words name}}    replaced by a list value, each item quoted, joined by spaces: an argument
//                     vector
//   {{sbatch name}}   alone on a line: one "#SBATCH --option" per item of a list value; each item
//                     is one option without blanks or quotes
//
// A value with a newline, carriage return or NUL is an error, so no value can add a line or an
// #SBATCH directive. An unused value is an error, too (a typo in a project's own template), unless
// `optional` names the value.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace xffl::submit {

using TemplateValue = std::variant<std::string, std::vector<std::string>>;
using TemplateValues = std::map<std::string, TemplateValue, std::less<>>;

/// Throws kConfig with "<origin>:<line>: ..." .
std::string render_template(std::string_view text, std::string_view origin,
                            const TemplateValues& values,
                            const std::set<std::string, std::less<>>& optional = {});

/// The shipped template of a kind ("process"), compiled in from templates/.
std::string_view shipped_template(std::string_view kind);

}  // namespace xffl::submit
