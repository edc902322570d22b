#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <regex>
#include <string>

#include "commands.h"
#include "project.h"
#include "stop_on_signal.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/verify/verify.h"

namespace xffl {
namespace {

struct VerifyOptions {
  ProjectOptions project;
  bool read_data = false, json = false;
  std::string replay;  // "all", "R", "R1-R2"; empty: no replay
  std::filesystem::path scratch;
};

verify::Rounds rounds_of(const std::string& text) {
  if (text == "all") return {};
  static const std::regex kPattern("([1-9][0-9]{0,8})(-([1-9][0-9]{0,8}))?");
  std::smatch match;
  if (!std::regex_match(text, match, kPattern))
    throw Error(ErrorKind::kUsage, "--replay is '" + log::printable(text, 80) +
                                       "'; expected all, a round such as 3, or rounds such as 3-5");
  const int first = std::stoi(match[1]);
  const int last = match[3].matched ? std::stoi(match[3]) : first;
  if (first > last)
    throw Error(ErrorKind::kUsage, "--replay is '" + text + "': the first round is after the last");
  return {first, last};
}

void run_verify(const VerifyOptions& options) {
  StopOnSignal signals("the check stops; nothing was changed");
  verify::Options settings;
  settings.read_data = options.read_data;
  if (!options.replay.empty()) settings.replay = rounds_of(options.replay);
  if (!options.scratch.empty()) settings.scratch = options.scratch;
  settings.stop = signals.token();
  settings.on_progress = [](const std::string& text) { log::info(text); };
  const verify::Verification result = verify::verify_run(
      options.project.existing_run(), std::filesystem::absolute(options.project.project), settings);
  std::fputs((options.json ? verify::format_json(result) : verify::format_text(result)).c_str(),
             stdout);
  const int64_t failed = result.num("failed");
  if (failed > 0)
    throw Error(ErrorKind::kCorrupt,
                std::to_string(failed) + " checks of run " + result.run +
                    " failed: the lines FAILED above name the files and events");
}

}  // namespace

void add_verify_command(CLI::App& app) {
  auto options = std::make_shared<VerifyOptions>();
  CLI::App* command = app.add_subcommand(
      "verify", "check that a run's models follow from its journal and its updates");
  add_project_options(command, options->project);
  command->add_flag("--read-data", options->read_data, "hash every file of the models and updates");
  command
      ->add_option("--replay", options->replay,
                   "compute rounds again from their updates: all, a round such as 3, or 3-5")
      ->expected(0, 1)
      ->default_str("all");
  command->add_option("--scratch", options->scratch,
                      "the folder for two float32 masters of a replay (default: TMPDIR or /tmp)");
  command->add_flag("--json", options->json, "print JSON");
  CLI::Option* replay = command->get_option("--replay");
  command->callback([options, replay] {
    if (replay->count() > 0 && options->replay.empty()) options->replay = "all";
    run_verify(*options);
  });
}

}  // namespace xffl
