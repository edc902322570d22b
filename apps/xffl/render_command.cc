#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "commands.h"
#include "project.h"
#include "xffl/base/clock.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"
#include "xffl/config/load.h"
#include "xffl/facility/job_script.h"
#include "xffl/history/store.h"

namespace xffl {
namespace {

struct Flags {
  ProjectOptions project;
  std::string facility;
  std::optional<int> round;
  std::filesystem::path out;
};

history::RunState history_of(const ProjectOptions& options) {
  if (options.run.empty() && !history::latest_run(options.runs())) {
    std::fprintf(stderr,
                 "xffl: no run exists yet: this is a preview, the run's folder and nonce will "
                 "differ\n");
    return facility::preview_state();
  }
  return history::replay(history::read_events(options.existing_run().journal()));
}

void render(const Flags& flags) {
  const config::Experiment experiment = config::load_experiment(flags.project.project);
  SystemClock clock;
  const facility::RenderedScript rendered = facility::render_script(
      experiment, history_of(flags.project), FacilityName(flags.facility), flags.round,
      facility::make_services(clock, experiment.project_folder).programs);
  if (flags.out.empty())
    std::fputs(rendered.script.c_str(), stdout);
  else
    write_file_atomic(flags.out, rendered.script);
  const std::string adapter = rendered.adapter_folder.str();
  std::fprintf(
      stderr,
      "xffl: round %d%s, attempt %d: %s\n"
      "xffl: the script reads %s/job.json and the model in %s%s%s; the coordinator pushes them "
      "before it submits\n",
      rendered.round, rendered.evaluates ? " (evaluation of the last model)" : "", rendered.attempt,
      rendered.job_name.c_str(), log::printable(rendered.folder.str(), 4000).c_str(),
      log::printable(rendered.model_folder.str(), 4000).c_str(),
      adapter.empty() ? "" : " and the adapter in ", log::printable(adapter, 4000).c_str());
}

}  // namespace

void add_render_command(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command =
      app.add_subcommand("render", "print a facility's next job script; contacts no facility");
  command->add_option("facility", flags->facility, "its name in xffl.yaml")->required();
  command->add_option("-p,--project", flags->project.project, "the project's folder (default: .)");
  command->add_option("-w,--workdir", flags->project.workdir,
                      "the folder of runs/ (default: the project's folder)");
  command->add_option("--run", flags->project.run, "the run (default: the newest)");
  command
      ->add_option("--round", flags->round, "the round (default: the one in progress, or the next)")
      ->check(CLI::PositiveNumber);
  command->add_option("--out", flags->out, "write it to a file instead of the terminal");
  command->callback([flags] { render(*flags); });
}

}  // namespace xffl
