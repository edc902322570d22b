#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "command_tree.h"
#include "commands.h"
#include "project.h"
#include "stop_on_signal.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/report/format.h"
#include "xffl/report/run_story.h"

namespace xffl {
namespace {

namespace fs = std::filesystem;

struct ReportOptions {
  ProjectOptions project;
  fs::path output;
  bool text = false, json = false;
  int watch_seconds = 0;  // 0: once
};

// Several commands may write the same report: each one has its own temporary file.
void write_page(const fs::path& path, const std::string& page) {
  TempFile file(path, "." + std::to_string(::getpid()) + ".tmp");
  write_all(file.fd(), std::as_bytes(std::span(page)), path);
  file.sync();
  file.publish();
}

// Writes the page again after each change of the run, until no coordinator holds the run.
void watch(const ReportOptions& options, const history::RunFolder& folder, const fs::path& path) {
  StopOnSignal signals("the report stays as it is; the coordinator continues");
  const std::chrono::seconds pause(options.watch_seconds);
  SystemClock clock;
  std::string shown;
  RepeatedProblem problem;
  do try {
      const std::string trace = trace_of(folder);
      if (trace == shown) continue;
      const report::RunStory story = story_of(options.project, folder);
      const bool goes_on = story.state == "running";
      write_page(path, report::format_html(story, goes_on ? std::optional(pause) : std::nullopt));
      shown = trace;
      problem.clear();
      if (!goes_on) return;
    } catch (const std::exception& error) {  // of a disk, or a file that is replaced
      if (shown.empty() || !may_have_coordinator(folder)) throw;
      problem.warn("the report is not written now: the next look tries again", error.what());
    }
  while (clock.sleep(pause, signals.token()));
}

void run_report(const ReportOptions& options) {
  const history::RunFolder folder = options.project.existing_run();
  if (options.text || options.json) {
    const report::RunStory story = story_of(options.project, folder);
    std::fputs((options.json ? report::format_json(story) : report::format_text(story)).c_str(),
               stdout);
    return;
  }
  const fs::path path = options.output.empty() ? folder.path() / "report.html" : options.output;
  with_context("while writing the report", [&] {
    if (options.watch_seconds > 0)
      watch(options, folder, path);
    else
      write_page(path, report::format_html(story_of(options.project, folder)));
  });
  std::printf("%s\n", path.c_str());
}

}  // namespace

void add_report_command(CLI::App& app) {
  auto options = std::make_shared<ReportOptions>();
  CLI::App* command =
      app.add_subcommand("report", "write the story of a run: an HTML file, text or JSON");
  add_project_options(command, options->project);
  CLI::Option* output = command
                            ->add_option("-o,--output", options->output,
                                         "the HTML file (default: runs/0001/report.html)")
                            ->type_name(kFileType);
  CLI::Option* text = command->add_flag("--text", options->text, "print text");
  CLI::Option* json = command->add_flag("--json", options->json, "print JSON");
  CLI::Option* watch =
      command
          ->add_option("--watch", options->watch_seconds,
                       "write the HTML file again after each change, until the coordinator ends; "
                       "looks every SECONDS")
          ->expected(0, 1)
          ->default_str("60")
          ->check(CLI::Range(1, 86400));
  text->excludes(json);
  for (CLI::Option* printed : {text, json}) printed->excludes(output)->excludes(watch);
  command->callback([options, watch] {
    if (watch->count() > 0 && options->watch_seconds == 0) options->watch_seconds = 60;
    run_report(*options);
  });
}

}  // namespace xffl
