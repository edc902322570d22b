// The command tree of the command line, as shell completion and man pages read it: the commands and
// options that `--help` shows, and the kind of each value.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace xffl {

// The types of values that a shell can complete: CLI::Option::type_name() of an option or argument.
inline constexpr const char* kFacilityType = "FACILITY";  // a name in xffl.yaml
inline constexpr const char* kRunType = "RUN";            // a folder in runs/
inline constexpr const char* kPresetType = "PRESET";      // of `xffl config preset`
inline constexpr const char* kFileType = "FILE";
inline constexpr const char* kFolderType = "FOLDER";
inline constexpr const char* kPathType = "PATH";  // a file or folder

/// The commands below `command`, without hidden commands.
std::vector<const CLI::App*> subcommands(const CLI::App& command);

/// The command below `command` with this name or alias; null for another word.
const CLI::App* subcommand(const CLI::App& command, const std::string& name);

/// The options with a name, without hidden options.
std::vector<const CLI::Option*> named_options(const CLI::App& command);

/// The arguments without a name, in their order.
std::vector<const CLI::Option*> arguments(const CLI::App& command);

/// The type of an option's value, such as "FOLDER"; empty for a flag.
std::string value_type(const CLI::Option& option);

/// The values of an option with a fixed list of values; empty for other options.
std::vector<std::string> choices(const CLI::Option& option);

/// The names of an option with their dashes, short names first.
std::vector<std::string> dashed_names(const CLI::Option& option);

}  // namespace xffl
