// xffl.yaml -> Experiment: every problem named with file:line:column and what to write instead.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "xffl/config/experiment.h"

namespace xffl::config {

struct Problem {
  int line = 0;         // 1-based; 0: the file as a whole
  int column = 0;       // 1-based
  std::string message;  // "unknown key 'learning_rat': did you mean 'learning_rate'?"
};

/// "<file>:<line>:<column>: error: <message>" per problem, one per line.
std::string format_problems(const std::filesystem::path& file,
                            const std::vector<Problem>& problems);

/// Reads `project_folder`/xffl.yaml. Throws kNotFound, or kConfig whose message is
/// format_problems() with all problems found.
Experiment load_experiment(const std::filesystem::path& project_folder);

/// The same for text that is not a file yet. `file` is for messages; relative paths resolve against
/// `project_folder`.
Experiment parse_experiment(const std::string& yaml, const std::filesystem::path& file,
                            const std::filesystem::path& project_folder);

/// The experiment as complete YAML: every key, defaults included, in a fixed order.
/// parse_experiment reads it back to an equal experiment, so its SHA-256 identifies what a run
/// does.
std::string format_experiment(const Experiment& experiment);

/// The part of it that decides what is trained: without the keys that say how facilities are
/// reached, what their jobs ask for, and how long anything is waited for. A run may go on under an
/// experiment of the same identity.
std::string format_training_identity(const Experiment& experiment);

/// JSON Schema (2020-12) of xffl.yaml, from the same table of keys that the parser uses.
std::string json_schema();

/// The same table as Markdown: the reference in docs/reference/configuration_keys.md.
std::string key_reference();

/// What the experiment names on this machine and is not there: the model's files, token shards of
/// facilities reached locally, templates, trainers. One sentence each; empty when all is in place.
std::vector<std::string> find_missing(const Experiment& experiment);

}  // namespace xffl::config
