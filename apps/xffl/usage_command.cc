#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "commands.h"
#include "project.h"
#include "terminal.h"
#include "xffl/base/clock.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"
#include "xffl/facility/services.h"
#include "xffl/submit/queue_manager.h"
#include "xffl/usage/accounting.h"
#include "xffl/usage/format.h"

namespace xffl {
namespace {

struct UsageOptions {
  ProjectOptions project;
  bool json = false, csv = false, accounting = false;
};

// Returns the earlier answers. A damaged file gives none, and the new answers replace it.
usage::Accounting earlier_answers(const history::RunFolder& folder) {
  try {
    return usage::read_accounting(folder.accounting());
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kCorrupt) throw;
    log::warning(
        "the damaged file of the accounting is replaced: the earlier answers of facilities that "
        "give none now are lost",
        {{"problem", error.what()}});
    return {};
  }
}

// Keeps the earlier answer of a facility that gives none now.
usage::Accounting ask_accounting(const config::Experiment& experiment,
                                 const history::RunFolder& folder,
                                 const std::vector<history::StoredEvent>& events) {
  usage::Accounting accounting = earlier_answers(folder);
  SystemClock clock;
  facility::Services services =
      facility::make_services(clock, experiment.project_folder, login_prompt());
  for (const auto& [name, jobs] : usage::jobs_of(events)) try {
      const config::Facility& facility = experiment.facility(name);
      const submit::QueueManager& manager = facility.scheduler.manager();
      if (manager.accounted_starts == nullptr) continue;
      const auto session = facility::queue_session(facility, services.connect(facility));
      accounting[name] = manager.accounted_starts(*session, facility.scheduler, jobs, {});
    } catch (const Error& error) {
      std::fprintf(stderr, "%s: the accounting is not known: %s\n", name.str().c_str(),
                   log::printable(error.what(), 400).c_str());
    }
  write_file_atomic(folder.accounting(), usage::format_accounting(accounting));
  return accounting;
}

void print_usage(const UsageOptions& options) {
  const history::RunFolder folder = options.project.existing_run();
  const config::Experiment experiment = experiment_of(options.project, folder);
  const std::vector<history::StoredEvent> events = history::read_events(folder.journal());
  const usage::Accounting accounting = options.accounting
                                           ? ask_accounting(experiment, folder, events)
                                           : usage::read_accounting(folder.accounting());
  const usage::Ledger ledger =
      usage::make_ledger(events, usage::gpus_per_node(experiment), accounting);
  const std::string text = options.json  ? usage::format_json(ledger, folder.run().str())
                           : options.csv ? usage::format_csv(ledger)
                                         : usage::format_text(ledger);
  std::fputs(text.c_str(), stdout);
}

}  // namespace

void add_usage_command(CLI::App& app) {
  auto options = std::make_shared<UsageOptions>();
  CLI::App* command = app.add_subcommand(
      "usage", "show the node-hours of a run by facility: used, lost, idle, evaluation");
  add_project_options(command, options->project);
  CLI::Option* json = command->add_flag("--json", options->json, "print JSON");
  command->add_flag("--csv", options->csv, "print one line for each start of a job")
      ->excludes(json);
  command->add_flag(
      "--accounting", options->accounting,
      "ask the facilities' accounting (sacct) first; the run folder keeps the answer");
  command->callback([options] { print_usage(*options); });
}

}  // namespace xffl
