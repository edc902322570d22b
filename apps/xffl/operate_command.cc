#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <set>

#include "command_tree.h"
#include "commands.h"
#include "project.h"
#include "terminal.h"
#include "xffl/base/clock.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/config/load.h"
#include "xffl/facility/machine.h"
#include "xffl/run/federation.h"
#include "xffl/status/status.h"

namespace xffl {
namespace {

using history::Request;

constexpr std::chrono::seconds kPatience{60};

struct Flags {
  ProjectOptions project;
  std::vector<std::string> facilities;
  std::string reason = "by the user";
  bool now = false;
  bool yes = false;
  bool accept_loss = false;
};

std::string join(const std::vector<FacilityName>& names) {
  std::string text;
  for (const FacilityName& name : names) text += (text.empty() ? "" : ", ") + name.str();
  return text;
}

// The reason why the newest round continues without the facility; empty when the facility takes
// part.
std::string missing(const status::RunStatus& status, const FacilityName& name) {
  const auto& rounds = status.run_state.rounds;
  if (rounds.empty()) return "";
  const auto& facilities = rounds.rbegin()->second.facilities;
  const auto facility = facilities.find(name);
  return facility == facilities.end() ? "" : facility->second.missing.value_or("");
}

// After `xffl resume` of facilities that no user had paused: reports why each facility does not
// run. Throws kAuth when authentication is required, kFailed when the facility is missing in the
// round.
void report_not_paused(const status::RunStatus& status, const std::vector<FacilityName>& names) {
  std::string auth, gone;
  for (const FacilityName& name : names) {
    const std::string begin = name.str() + " was not paused by a user";
    const auto live = status.live.find(name);
    const std::string activity = live == status.live.end() ? "" : live->second.activity;
    const std::string why = missing(status, name);
    if (activity.starts_with(facility::kAuthPause))
      auth += begin + ": " + log::printable(activity, 1000) + "\n";
    else if (!why.empty())
      gone +=
          begin + ", it is missing in this round (" + log::printable(why, 1000) +
          ") and has a new budget of attempts: fix the cause, stop the run if it is active, and "
          "`xffl run`\n";
    else
      std::printf("%s: nothing has changed\n", begin.c_str());
  }
  const ErrorKind kind = auth.empty() ? ErrorKind::kFailed : ErrorKind::kAuth;
  std::string text = auth + gone;
  if (text.empty()) return;
  text.pop_back();
  throw Error(kind, text);
}

void resume(const history::RunFolder& folder, const config::Experiment& experiment,
            facility::Services& services, const Request& request) {
  const auto paused = history::read_newest(folder.journal()).paused;
  run::operate(experiment, folder, services, request, kPatience);
  std::vector<FacilityName> resumed, others;
  for (const FacilityName& name : request.facilities)
    (paused.contains(name) ? resumed : others).push_back(name);
  const status::RunStatus status =
      status::read_status(folder.path(), experiment.rounds, status::Rounds::kNewest);
  if (!resumed.empty())
    std::printf("run %s continues at %s%s\n", folder.run().str().c_str(), join(resumed).c_str(),
                status.coordinator.empty() ? " with the next `xffl run`" : "");
  report_not_paused(status, others);
}

// The jobs that a cancellation of the run ends at a facility, and the facility's activity.
std::string jobs_at(const status::RunStatus& status, const config::Facility& facility) {
  const std::string jobs = open_jobs(status.run_state, facility);
  if (jobs.empty()) return "no job";
  const auto live = status.live.find(facility.name);
  return jobs +
         (live == status.live.end() ? "" : " (" + log::printable(live->second.activity, 300) + ")");
}

// Asks the user at the terminal; without a terminal at standard input the command itself is the
// answer. Throws kCancelled unless the user agrees.
void confirm_cancel(const history::RunFolder& folder, const config::Experiment& experiment) {
  if (::isatty(STDIN_FILENO) == 0) return;
  const status::RunStatus status =
      status::read_status(folder.path(), experiment.rounds, status::Rounds::kNewest);
  if (status.run_state.completed || status.run_state.cancelled) return;
  std::string question = status::headline(status) + "\n";
  for (const config::Facility& facility : experiment.facilities)
    question += "  " + facility.name.str() + ": " + jobs_at(status, facility) + "\n";
  question +=
      "A cancelled run cannot continue. The jobs end; published models stay.\n"
      "Cancel the run? (type yes to cancel) ";
  require_yes(question, "xffl cancel --yes", "run " + folder.run().str() + " was not cancelled");
}

// Returns the run's configuration with the new members from xffl.yaml: the named ones, or all when
// the command names none. A new member is not in the run's configuration until its first round. A
// cancellation needs no xffl.yaml.
config::Experiment experiment_with_new_members(const Flags& flags, const history::RunFolder& folder,
                                               Request::Kind kind) {
  config::Experiment experiment = experiment_of(flags.project, folder);
  if (kind == Request::Kind::kCancel) return experiment;
  std::set<FacilityName> names;
  for (const std::string& name : flags.facilities) names.emplace(name);
  for (const FacilityName& name : history::read_newest(folder.journal()).joined) {
    const bool is_known =
        std::any_of(experiment.facilities.begin(), experiment.facilities.end(),
                    [&](const config::Facility& each) { return each.name == name; });
    if (is_known || (!names.empty() && !names.contains(name))) continue;
    try {
      experiment.facilities.push_back(
          config::load_experiment(flags.project.project).facility(name));
    } catch (const Error& error) {
      if (!names.empty()) throw;
      log::warning("a new member is left out: correct xffl.yaml",
                   {{"facility", name.str()}, {"problem", error.what()}});
    }
  }
  return experiment;
}

void operate(const Flags& flags, Request request) {
  const history::RunFolder folder = flags.project.existing_run();
  const bool joins = request.kind == Request::Kind::kJoin;
  const config::Experiment experiment =
      joins ? config::load_experiment(flags.project.project)
            : experiment_with_new_members(flags, folder, request.kind);
  request.now = request.kind == Request::Kind::kLeave && flags.now;
  request.reason = flags.reason;
  for (const std::string& name : flags.facilities) request.facilities.emplace_back(name);
  if (request.facilities.empty())
    for (const config::Facility& facility : experiment.facilities)
      request.facilities.push_back(facility.name);
  if (request.kind == Request::Kind::kCancel && !flags.yes) confirm_cancel(folder, experiment);
  SystemClock clock;
  facility::Services services =
      facility::make_services(clock, experiment.project_folder, login_prompt());
  if (request.kind == Request::Kind::kResume) return resume(folder, experiment, services, request);
  run::operate(experiment, folder, services, request, kPatience);
  const std::string run = folder.run().str();
  if (request.kind == Request::Kind::kCancel)
    std::printf("run %s is cancelled; its published models stay in %s\n", run.c_str(),
                folder.path().c_str());
  if (request.kind == Request::Kind::kLeave)
    std::printf(
        "%s: no member of run %s from the next round on%s; `xffl join` makes it one again\n",
        join(request.facilities).c_str(), run.c_str(),
        request.now ? ", and its job of this round is cancelled" : "");
  if (joins)
    std::printf("%s: takes part in run %s from the next round on\n",
                join(request.facilities).c_str(), run.c_str());
  if (request.kind == Request::Kind::kPause)
    std::printf("run %s submits no more jobs at %s; continue with `xffl resume`\n", run.c_str(),
                join(request.facilities).c_str());
}

void repair(const Flags& flags) {
  const history::RunFolder folder = flags.project.existing_run();
  const history::Repaired repaired = history::repair(
      folder.journal(), flags.accept_loss ? history::Losses::kAccepted : history::Losses::kRefused);
  const std::string run = folder.run().str();
  if (repaired.damaged.empty() && repaired.lost_events == 0) {
    std::printf("the journal of run %s is intact: nothing was changed\n", run.c_str());
    return;
  }
  std::printf("the journal of run %s is repaired, with %lld events", run.c_str(),
              static_cast<long long>(repaired.events));
  if (!repaired.damaged.empty()) std::printf("; the damaged file is %s", repaired.damaged.c_str());
  if (repaired.lost_events > 0)
    std::printf("; at least %lld later events are lost",
                static_cast<long long>(repaired.lost_events));
  if (!repaired.damaged_mirror.empty())
    std::printf("; the mirror is kept as %s", repaired.damaged_mirror.c_str());
  std::printf("\n");
}

void adopt(const ProjectOptions& options) {
  const history::RunFolder folder = options.existing_run();
  const bool adopted = history::adopt_run(folder);
  std::printf("run %s %s %s\n", folder.run().str().c_str(),
              adopted ? "is now coordinated in" : "was coordinated already in",
              folder.path().c_str());
}

CLI::App* add(CLI::App& app, const std::shared_ptr<Flags>& flags, const char* name,
              const char* help, Request::Kind kind) {
  CLI::App* command = app.add_subcommand(name, help);
  add_project_options(command, flags->project);
  command->callback(
      [flags, kind] { operate(*flags, {.kind = kind, .facilities = {}, .reason = {}}); });
  return command;
}

}  // namespace

void add_operate_commands(CLI::App& app) {
  const auto flags = std::make_shared<Flags>();
  CLI::App* cancel =
      add(app, flags, "cancel",
          "end a run and its jobs at the facilities; asks for confirmation on a terminal",
          Request::Kind::kCancel);
  cancel->add_flag("-y,--yes", flags->yes, "cancel without a question");
  CLI::App* pause =
      add(app, flags, "pause",
          "stop submitting jobs at some or all facilities; running jobs continue and their "
          "updates are used",
          Request::Kind::kPause);
  pause->add_option("--reason", flags->reason, "shown by `xffl status`");
  CLI::App* resume =
      add(app, flags, "resume",
          "submit jobs again at facilities that a user paused, or where a user cancelled "
          "xffl's job",
          Request::Kind::kResume);
  CLI::App* journal =
      app.add_subcommand("journal", "repair a run's journal, or take over a copied run");
  journal->require_subcommand(1);
  CLI::App* repairs =
      journal->add_subcommand("repair", "rebuild a damaged journal from its mirror");
  add_project_options(repairs, flags->project);
  repairs->add_flag("--accept-loss", flags->accept_loss,
                    "also where later events are lost; keeps both damaged files");
  repairs->callback([flags] { repair(*flags); });
  CLI::App* adopts =
      journal->add_subcommand("adopt", "take over a copied run folder (the original must be gone)");
  add_project_options(adopts, flags->project);
  adopts->callback([flags] { adopt(flags->project); });
  CLI::App* leave = add(app, flags, "leave",
                        "take facilities out of a run, from the next round on; the running job of "
                        "the present round continues",
                        Request::Kind::kLeave);
  leave->add_flag("--now", flags->now, "also end their part of the present round, and its jobs");
  leave->add_option("--reason", flags->reason, "shown by `xffl status`");
  CLI::App* joins = add(app, flags, "join",
                        "let facilities take part from the next round on: they have left, or are "
                        "new in xffl.yaml",
                        Request::Kind::kJoin);
  for (CLI::App* command : {leave, joins})
    command->add_option("facility", flags->facilities, "names in xffl.yaml")
        ->type_name(kFacilityType)
        ->required();
  for (CLI::App* command : {pause, resume})
    command->add_option("facility", flags->facilities, "names in xffl.yaml (default: all)")
        ->type_name(kFacilityType);
}

}  // namespace xffl
