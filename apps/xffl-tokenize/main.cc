// xffl-tokenize encodes text as token shards and decodes shards.
#include <exception>
#include <iostream>
#include <system_error>

#include "commands.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"

namespace xffl::app {

void InputFlags::add_to(CLI::App& command, bool with_ids) {
  command
      .add_option("--input", inputs,
                  "Input files: text, JSONL (*.jsonl), Parquet, Arrow, or a folder of datasets' "
                  "save_to_disk")
      ->required();
  command.add_option("--format", format, "Format of the inputs; auto: by the file name")
      ->check(CLI::IsMember(tokenize::format_names(!with_ids)))
      ->capture_default_str();
  constexpr auto units = names_of(tokens::DocumentUnit{});
  command.add_option("--document", unit, "Unit of a text file that makes a document")
      ->check(CLI::IsMember(std::vector<std::string>(units.begin(), units.end())))
      ->capture_default_str();
  command
      .add_option("--text-field", text_field,
                  "Field of a JSONL object, or column of a table, with the text")
      ->capture_default_str();
  if (with_ids) {
    command
        .add_option("--messages-field", messages_field,
                    "With --format chat: field or column with the messages")
        ->capture_default_str();
    command.add_option("--id-type", id_type, "With --format bin: the type of an id")
        ->check(CLI::IsMember(tokenize::id_type_names()))
        ->capture_default_str();
    CLI::Option* end = command.add_option(
        "--end-id", end_id, "With --format bin: the id that ends a document, and belongs to it");
    command
        .add_option("--row-ids", row_ids,
                    "With --format bin: the number of ids of a document, if no id ends it "
                    "(default: --sequence-length)")
        ->check(CLI::PositiveNumber)
        ->excludes(end);
  }
  command.add_option("--documents", limit, "Number of documents to read; 0: all")
      ->capture_default_str();
}

tokenize::DocumentOptions InputFlags::options() const {
  tokenize::DocumentOptions options;
  options.format = tokenize::format_named(format);
  options.unit = *parse_enum<tokens::DocumentUnit>(unit);
  options.text_field = text_field;
  options.prompt_field = prompt_field;
  options.limit = limit;
  options.messages_field = messages_field;
  options.id_type = tokenize::id_type_named(id_type);
  options.end_id = end_id;
  options.whole_rows = row_ids.has_value();
  if (row_ids) options.row_ids = *row_ids;
  return options;
}

int run(int argc, char** argv) {
  CLI::App app("Encodes text as token shards for xffl-train, and decodes shards.", "xffl-tokenize");
  app.require_subcommand(1);
  app.set_version_flag("--version", XFFL_VERSION);
  add_train_command(app);
  add_encode_command(app);
  add_prepare_command(app);
  add_decode_command(app);
  add_inspect_command(app);
  int code = 0;
  add_generate_command(app, code);
  add_man_command(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : exit_code(ErrorKind::kUsage);
  }
  return code;
}

}  // namespace xffl::app

int main(int argc, char** argv) {
  try {
    return xffl::app::run(argc, argv);
  } catch (const xffl::Error& error) {
    std::cerr << "xffl-tokenize: " << xffl::to_string(error.kind()) << ": "
              << xffl::log::printable(error.what()) << '\n';
    return xffl::exit_code(error.kind());
  } catch (const std::system_error& error) {  // a limit of files, or of processes
    std::cerr << "xffl-tokenize: io: " << xffl::log::printable(error.what()) << '\n';
    return xffl::exit_code(xffl::ErrorKind::kIo);
  } catch (const std::exception& error) {
    std::cerr << "xffl-tokenize: internal: " << xffl::log::printable(error.what()) << '\n';
    return xffl::exit_code(xffl::ErrorKind::kInternal);
  }
}
