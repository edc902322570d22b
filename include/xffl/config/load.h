// xffl.yaml -> Experiment. Each problem has its file:line:column and the text to write instead.
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

/// Reads `project_folder`/xffl.yaml, at most 1 MiB. Throws kNotFound, or kConfig whose message is
/// format_problems() with all problems found, also when format_experiment() would not be read back.
Experiment load_experiment(const std::filesystem::path& project_folder);

/// The same for a text of at most 4 MiB. `file` appears in messages; relative paths resolve against
/// `project_folder`.
Experiment parse_experiment(const std::string& yaml, const std::filesystem::path& file,
                            const std::filesystem::path& project_folder);

/// The experiment as complete YAML: every key, defaults included, in a fixed order.
/// parse_experiment() reads the YAML back to an equal experiment, so the YAML's SHA-256 identifies
/// the experiment.
std::string format_experiment(const Experiment& experiment);

/// The part of the experiment that determines the training: without the keys of access, resources
/// and time-outs. A run may continue under an experiment of the same identity.
std::string format_training_identity(const Experiment& experiment);

/// JSON Schema (2020-12) of xffl.yaml, from the parser's tables of fields.
std::string json_schema();

/// The parser's tables of fields as Markdown: the reference in
/// docs/reference/configuration_keys.md.
std::string key_reference();

/// The experiment's files that are missing on this machine: the model's files, token shards of
/// local facilities, templates, trainers. One sentence per file; empty when all files exist.
std::vector<std::string> find_missing(const Experiment& experiment);

}  // namespace xffl::config
