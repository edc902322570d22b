#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>

#include "command_tree.h"
#include "commands.h"
#include "stop_on_signal.h"
#include "terminal.h"
#include "xffl/base/clock.h"
#include "xffl/base/log.h"
#include "xffl/config/load.h"
#include "xffl/prepare/prepare.h"

namespace xffl {
namespace {

using prepare::Prepared;

struct PrepareOptions {
  std::filesystem::path project = ".";
  std::string facility;
  bool again = false;
};

std::string megabytes(uint64_t bytes) {
  char text[40];
  std::snprintf(text, sizeof text, "%.1f MB", static_cast<double>(bytes) / 1e6);
  return text;
}

// A line in a terminal, replaced by the next one; elsewhere a line every ten seconds.
void show_progress(const std::string& facility, const tokens::PrepareProgress& now,
                   Clock::MonotonicTime& last, const Clock& clock) {
  const double share = now.bytes_total > 0 ? 100.0 * static_cast<double>(now.bytes_done) /
                                                 static_cast<double>(now.bytes_total)
                                           : 0;
  char text[120];
  std::snprintf(text, sizeof text, "%s: %3.0f %% of %s, %.1f M tokens", facility.c_str(), share,
                megabytes(now.bytes_total).c_str(), static_cast<double>(now.tokens) / 1e6);
  if (log::live_line_width() > 0) return log::set_live_line(text);
  if (clock.monotonic() - last < std::chrono::seconds(10)) return;
  last = clock.monotonic();
  std::printf("%s\n", text);
  std::fflush(stdout);
}

void print_shard(const std::string& path, const tokens::PreparedShard& shard) {
  std::printf("  %s: %llu tokens, %llu sequences, %llu documents, %s, SHA-256 %.16s\n",
              path.c_str(), static_cast<unsigned long long>(shard.tokens),
              static_cast<unsigned long long>(shard.sequences),
              static_cast<unsigned long long>(shard.documents), megabytes(shard.bytes).c_str(),
              shard.sha256.c_str());
}

void print(const config::Facility& facility, const prepare::Outcome& outcome) {
  const Prepared& prepared = outcome.prepared;
  std::printf("%s: %s of text in %llu files %s, %.0f s\n", facility.name.str().c_str(),
              megabytes(prepared.bytes).c_str(), static_cast<unsigned long long>(prepared.files),
              outcome.was_there ? "were tokenized before (--again: repeat it for text that changed)"
                                : "are tokenized",
              prepared.seconds);
  print_shard((facility.prepared / tokens::kPreparedTraining).str(), prepared.training);
  if (prepared.validation)
    print_shard((facility.prepared / tokens::kPreparedValidation).str(), *prepared.validation);
  if (prepared.dropped_tokens > 0)
    std::printf("  %llu tokens at the end did not fill a sequence and were dropped\n",
                static_cast<unsigned long long>(prepared.dropped_tokens));
  if (prepared.cut_documents > 0)
    std::printf("  %llu documents were longer than a sequence and were cut into pieces\n",
                static_cast<unsigned long long>(prepared.cut_documents));
}

void prepare_text(const PrepareOptions& options) {
  const config::Experiment experiment = config::load_experiment(options.project);
  const config::Facility& facility = experiment.facility(FacilityName(options.facility));
  StopOnSignal signals("the command stops; the job goes on, and the same command follows it");
  SystemClock clock;
  facility::Services services =
      facility::make_services(clock, experiment.project_folder, login_prompt());
  Clock::MonotonicTime last = clock.monotonic();
  const prepare::Callbacks callbacks{.on_state =
                                         [&](const std::string& message) {
                                           log::info(message, {{"facility", options.facility}});
                                         },
                                     .on_progress =
                                         [&](const tokens::PrepareProgress& now) {
                                           show_progress(options.facility, now, last, clock);
                                         }};
  prepare::Outcome outcome;
  try {
    outcome =
        prepare::prepare(experiment, facility, services, options.again, signals.token(), callbacks);
  } catch (...) {
    log::set_live_line("");
    throw;
  }
  log::set_live_line("");
  print(facility, outcome);
}

}  // namespace

void add_prepare_command(CLI::App& app) {
  auto options = std::make_shared<PrepareOptions>();
  CLI::App* command = app.add_subcommand(
      "prepare", "tokenize a facility's text there (data.text), by a job of its queue manager");
  command->add_option("facility", options->facility, "the facility's name in xffl.yaml")
      ->type_name(kFacilityType)
      ->required();
  command->add_option("-p,--project", options->project, "the project's folder (default: .)")
      ->type_name(kFolderType);
  command->add_flag("--again", options->again,
                    "tokenize the text although there are shards: it has changed");
  command->callback([options] { prepare_text(*options); });
}

}  // namespace xffl
