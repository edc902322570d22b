// Job scripts from strict templates.
//
//   {{name}}          replaced by the value; a name without a value is an error with its line
//   {{lines name}}    alone on a line: one line per item of a list value, none for an empty list
//   {{quote name}}    replaced by the value as one quoted word of a POSIX shell
//   {{words name}}    replaced by a list value, each item quoted, joined by spaces: an argument
//                     vector
//   {{sbatch name}}   alone on a line: one "#SBATCH --option" per item of a list value; each item
//                     is one option without blanks or quotes
//   {{gridengine name}}   as sbatch, "#$ -flag value ..."
//   {{pbs name}}      as sbatch, "#PBS -flag value ..."
//   {{flux name}}     as sbatch, "# flux: --option"
//   {{include name}}  alone on a line: the shipped part templates/parts/<name>.sh
//
// A value with a newline, carriage return or NUL is an error, so no value can add a line or an
// #SBATCH directive. An unused value is an error, too (a typo in a project's own template), unless
// `optional` names the value.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "xffl/base/names.h"

namespace xffl::submit {

class QueueSettings;  // queue_manager.h

using TemplateValue = std::variant<std::string, std::vector<std::string>>;
using TemplateValues = std::map<std::string, TemplateValue, std::less<>>;

// The contents of a job, for a queue manager that makes the job's script from its template.
struct ScriptRequest {
  const QueueSettings& settings;
  int world_size = 1;
  std::string job_name;
  RemotePath folder;                      // the attempt's folder
  std::optional<RemotePath> next_folder;  // of the round that may use a kept allocation
  bool may_requeue = true;                // the queue manager may start the job again by itself
  std::vector<std::string> modules;       // a line of shell for each environment module
  std::vector<std::string> image;         // starts `trainer` in its image; empty: no image
  std::vector<std::string> trainer;       // one rank
  std::string xffl;                       // the program that starts ranks on this machine
};

// The values of a queue manager's template, beside job_name, folder, nonce and environment.
struct ScriptValues {
  TemplateValues values;
  std::set<std::string, std::less<>> optional;  // values that a project's template may leave out
};

/// Throws kConfig with "<origin>:<line>: ..." .
std::string render_template(std::string_view text, std::string_view origin,
                            const TemplateValues& values,
                            const std::set<std::string, std::less<>>& optional = {});

/// The shipped template of a kind ("process"), compiled in from templates/.
std::string_view shipped_template(std::string_view kind);

}  // namespace xffl::submit
