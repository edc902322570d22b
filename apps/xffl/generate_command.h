// `xffl generate`: continue a text with a model.
#pragma once

#include <CLI/CLI.hpp>

namespace xffl {

/// Adds the command, which becomes xffl-tokenize generate: that program has the tokenizers, and
/// this one links none. All words go on to it.
void add_generate_command(CLI::App& app);

}  // namespace xffl
