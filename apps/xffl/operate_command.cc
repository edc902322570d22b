#include "operate_command.h"

#include <cstdio>
#include <memory>

#include "project.h"
#include "xffl/base/clock.h"
#include "xffl/round/federation.h"

namespace xffl {
namespace {

using round::Request;

constexpr std::chrono::seconds kPatience{60};

struct Flags {
  ProjectOptions project;
  std::vector<std::string> facilities;
  std::string reason = "by a person";
};

std::string names_of(const Request& request) {
  std::string names;
  for (const FacilityName& name : request.facilities)
    names += (names.empty() ? "" : ", ") + name.str();
  return names;
}

void operate(const Flags& flags, Request request) {
  const round::RunFolder folder = flags.project.existing_run();
  const config::Experiment experiment = experiment_of(flags.project, folder);
  request.reason = flags.reason;
  for (const std::string& name : flags.facilities) request.facilities.emplace_back(name);
  if (request.facilities.empty())
    for (const config::Facility& facility : experiment.facilities)
      request.facilities.push_back(facility.name);
  SystemClock clock;
  round::World world = round::make_world(clock, experiment.project_folder);
  round::operate(experiment, folder, world, request, kPatience);
  const std::string run = folder.run().str();
  if (request.kind == Request::Kind::kCancel)
    std::printf("run %s is over; its published models stay in %s\n", run.c_str(),
                folder.path().c_str());
  if (request.kind == Request::Kind::kPause)
    std::printf("run %s: no further job begins at %s; continue with `xffl resume`\n", run.c_str(),
                names_of(request).c_str());
  if (request.kind == Request::Kind::kResume)
    std::printf("run %s goes on at %s%s\n", run.c_str(), names_of(request).c_str(),
                journal::lock_holder(folder.journal()).empty() ? " with the next `xffl run`" : "");
}

void repair(const ProjectOptions& options) {
  const round::RunFolder folder = options.existing_run();
  const journal::Repaired repaired = journal::repair(folder.journal());
  if (repaired.damaged.empty())
    std::printf("the journal of run %s is whole: nothing was changed\n",
                folder.run().str().c_str());
  else
    std::printf("the journal of run %s has %lld events again; what was damaged is %s\n",
                folder.run().str().c_str(), static_cast<long long>(repaired.events),
                repaired.damaged.c_str());
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
  add(app, flags, "cancel", "end a run and its jobs at the facilities", Request::Kind::kCancel);
  CLI::App* pause = add(app, flags, "pause",
                        "begin no further jobs, at some facilities or all; what runs goes on",
                        Request::Kind::kPause);
  pause->add_option("--reason", flags->reason, "for `xffl status`");
  CLI::App* resume = add(app, flags, "resume",
                         "go on where a facility was paused, by a person or "
                         "because somebody cancelled its job",
                         Request::Kind::kResume);
  CLI::App* journal = app.add_subcommand("journal", "a run's memory");
  journal->require_subcommand(1);
  CLI::App* mend =
      journal->add_subcommand("repair", "make a damaged journal again from its mirror");
  add_project_options(mend, flags->project);
  mend->callback([flags] { repair(flags->project); });
  for (CLI::App* command : {pause, resume})
    command->add_option("facility", flags->facilities, "names in xffl.yaml (default: all)");
}

}  // namespace xffl
