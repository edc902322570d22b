// The commands of xffl-tokenize. Each function adds one command and the callback that runs the
// command.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <optional>
#include <string>

#include "xffl/tokenize/documents.h"

namespace xffl {

/// `man`: the manual pages of the commands of `app`; in apps/xffl/man_command.cc.
void add_man_command(CLI::App& app);

}  // namespace xffl

namespace xffl::app {

void add_train_command(CLI::App& app);
void add_encode_command(CLI::App& app);
void add_prepare_command(CLI::App& app);
void add_decode_command(CLI::App& app);
void add_inspect_command(CLI::App& app);
/// The callback sets `exit_code` to the exit code of xffl-train, which prints its errors.
void add_generate_command(CLI::App& app, int& exit_code);

/// The options of the commands that read corpora: --input, --document, --text-field, --format,
/// --documents.
struct InputFlags {
  std::vector<std::string> inputs;
  std::string format = "auto";
  std::string unit = "paragraph";
  std::string text_field = "text";
  std::string prompt_field;
  std::string messages_field = "messages";
  uint64_t limit = 0;
  std::string id_type = "uint16";
  std::optional<int32_t> end_id;
  std::optional<uint64_t> row_ids;

  void add_to(CLI::App& command, bool with_ids);
  std::vector<std::filesystem::path> paths() const { return {inputs.begin(), inputs.end()}; }
  tokenize::DocumentOptions options() const;
};

}  // namespace xffl::app
