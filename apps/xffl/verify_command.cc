#include <fcntl.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <regex>
#include <string>

#include "command_tree.h"
#include "commands.h"
#include "project.h"
#include "stop_on_signal.h"
#include "xffl/base/clock.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"
#include "xffl/base/sha256.h"
#include "xffl/verify/sign.h"
#include "xffl/verify/verify.h"

namespace xffl {
namespace {

struct VerifyOptions {
  ProjectOptions project;
  bool read_data = false, json = false;
  std::string replay;  // "all", "R", "R1-R2"; empty: no replay
  int replay_blocks = 0;
  std::optional<uint64_t> seed;
  std::filesystem::path scratch, allowed_signers;
};

struct SignOptions {
  ProjectOptions project;
  int round = 0;  // 0: the newest published one
  std::filesystem::path key;
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

// A run's folder on a file system that permits no writes is verified all the same.
void keep(const history::RunFolder& folder, const verify::Verification& result) {
  const std::filesystem::path path = folder.verification();
  std::vector<history::KeptCheck> earlier;
  try {
    earlier = history::read_kept_checks(path);
  } catch (const Error& error) {
    log::warning("the results of earlier verifications are lost", {{"problem", error.what()}});
  }
  try {
    write_file_atomic(path,
                      history::format_kept_checks(history::merged(
                          std::move(earlier), verify::kept_checks(result, SystemClock().utc()))));
  } catch (const Error& error) {
    log::info("the result is not kept for `xffl report`", {{"problem", error.what()}});
  }
}

uint64_t random_seed() { return std::stoull(random_hex(4), nullptr, 16); }

void run_sign(const SignOptions& options) {
  StopOnSignal signals("nothing is signed");
  const verify::Signed made = verify::sign_model(options.project.existing_run(),
                                                 std::filesystem::absolute(options.project.project),
                                                 options.round, options.key, signals.token());
  std::printf("%s\n%s\n", made.statement.c_str(), made.signature.c_str());
}

void run_verify(const VerifyOptions& options) {
  StopOnSignal signals("the check stops; nothing was changed");
  verify::Options settings;
  settings.read_data = options.read_data;
  if (!options.replay.empty()) settings.replay = rounds_of(options.replay);
  if (!options.scratch.empty()) settings.scratch = options.scratch;
  settings.replay_blocks = options.replay_blocks;
  settings.seed = options.seed ? *options.seed : random_seed();
  settings.allowed_signers = options.allowed_signers;
  if (!options.allowed_signers.empty()) open_file(options.allowed_signers, O_RDONLY);
  settings.stop = signals.token();
  settings.on_progress = [](const std::string& text) { log::info(text); };
  const history::RunFolder folder = options.project.existing_run();
  const verify::Verification result =
      verify::verify_run(folder, std::filesystem::absolute(options.project.project), settings);
  keep(folder, result);
  std::fputs((options.json ? verify::format_json(result) : verify::format_text(result)).c_str(),
             stdout);
  const int64_t failed = result.num("failed");
  if (failed > 0)
    throw Error(ErrorKind::kCorrupt,
                std::to_string(failed) + " checks of run " + result.run +
                    " failed: the lines FAILED above name the files and events");
}

void add_sign_command(CLI::App& app) {
  auto options = std::make_shared<SignOptions>();
  CLI::App* command = app.add_subcommand("sign", "sign a published model by ssh-keygen");
  add_project_options(command, options->project);
  command->add_option("--round", options->round, "the round (default: the newest published one)")
      ->check(CLI::Range(1, 1'000'000'000));
  command
      ->add_option("--key", options->key,
                   "an SSH key: private, or public with its private key in an agent")
      ->type_name(kFileType)
      ->required();
  command->callback([options] { run_sign(*options); });
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
  command
      ->add_option("--scratch", options->scratch,
                   "the folder for two float32 masters of a replay (default: TMPDIR or /tmp)")
      ->type_name(kFolderType);
  command
      ->add_option("--replay-blocks", options->replay_blocks,
                   "carry N random blocks of 131,072 elements through all rounds")
      ->check(CLI::Range(1, 1'000'000'000));
  command->add_option("--seed", options->seed, "of the choice of blocks (default: random)");
  command
      ->add_option("--allowed-signers", options->allowed_signers,
                   "check the signatures of `xffl sign` by this file (see ssh-keygen(1))")
      ->type_name(kFileType);
  command->add_flag("--json", options->json, "print JSON");
  CLI::Option* replay = command->get_option("--replay");
  command->callback([options, replay] {
    if (replay->count() > 0 && options->replay.empty()) options->replay = "all";
    run_verify(*options);
  });
  add_sign_command(app);
}

}  // namespace xffl
