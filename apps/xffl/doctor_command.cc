#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>

#include "commands.h"
#include "doctor.h"
#include "project.h"
#include "terminal.h"
#include "xffl/base/clock.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/config/load.h"

namespace xffl {
namespace {

// Returns how many findings are bad.
int show(const std::string& title, const std::vector<Finding>& findings) {
  std::printf("%s\n", title.c_str());
  for (const Finding& finding : findings) {
    constexpr const char* kWords[] = {"ok     ", "warning", "FAILED "};
    std::printf("  %s %-16s %s\n", kWords[static_cast<int>(finding.grade)], finding.what.c_str(),
                log::printable(finding.said, 1000).c_str());
    if (!finding.fix.empty()) std::printf("          -> %s\n", finding.fix.c_str());
  }
  std::fflush(stdout);
  return static_cast<int>(std::count_if(findings.begin(), findings.end(), [](const Finding& f) {
    return f.grade == Finding::Grade::kBad;
  }));
}

void doctor(const ProjectOptions& options, const std::vector<std::string>& names) {
  const config::Experiment experiment = config::load_experiment(options.project);
  SystemClock clock;
  facility::Services services =
      facility::make_services(clock, experiment.project_folder, person_at_terminal());
  int bad = show("this machine", examine_this_machine(experiment, options.runs(), services));
  for (const std::string& name : names) experiment.facility(FacilityName(name));
  for (const config::Facility& facility : experiment.facilities)
    if (names.empty() || std::find(names.begin(), names.end(), facility.name.str()) != names.end())
      bad += show(facility.name.str(), examine_facility(experiment, facility, services));
  if (bad > 0)
    throw Error(ErrorKind::kFailed, std::to_string(bad) + " checks failed; each says what to do");
  std::printf("everything is in place\n");
}

}  // namespace

void add_doctor_command(CLI::App& app) {
  struct Flags {
    ProjectOptions options;
    std::vector<std::string> facilities;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "doctor", "check this machine and every facility before a run; submits nothing");
  add_project_options(command, flags->options);
  command->add_option("facility", flags->facilities, "only these (default: all)");
  command->callback([flags] { doctor(flags->options, flags->facilities); });
}

}  // namespace xffl
