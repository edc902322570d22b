// xffl config: makes, checks and shows a project's xffl.yaml.
#pragma once

#include <CLI/CLI.hpp>

namespace xffl {

/// `config` and its sub-commands validate, schema and show. Their callbacks throw Error.
void add_config_commands(CLI::App& app);

}  // namespace xffl
