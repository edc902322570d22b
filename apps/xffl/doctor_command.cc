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

// Prints the results and returns the number of errors.
int show(const std::string& title, const std::vector<CheckResult>& results) {
  std::printf("%s\n", title.c_str());
  for (const CheckResult& result : results) {
    constexpr const char* kLabels[] = {"ok     ", "warning", "FAILED "};
    std::printf("  %s %-16s %s\n", kLabels[static_cast<int>(result.severity)], result.check.c_str(),
                log::printable(result.message, 1000).c_str());
    if (!result.fix.empty()) std::printf("          -> %s\n", result.fix.c_str());
  }
  std::fflush(stdout);
  return static_cast<int>(std::count_if(results.begin(), results.end(), [](const CheckResult& r) {
    return r.severity == CheckResult::Severity::kError;
  }));
}

void doctor(const ProjectOptions& options, const std::vector<std::string>& names) {
  const config::Experiment experiment = config::load_experiment(options.project);
  SystemClock clock;
  facility::Services services =
      facility::make_services(clock, experiment.project_folder, login_prompt());
  int num_errors = show("this machine", check_machine(experiment, options.runs(), services));
  for (const std::string& name : names) experiment.facility(FacilityName(name));
  for (const config::Facility& facility : experiment.facilities)
    if (names.empty() || std::find(names.begin(), names.end(), facility.name.str()) != names.end())
      num_errors += show(facility.name.str(), check_facility(experiment, facility, services));
  if (num_errors > 0)
    throw Error(ErrorKind::kFailed,
                std::to_string(num_errors) + " checks failed; the lines with -> name the fixes");
  std::printf("all checks passed\n");
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
