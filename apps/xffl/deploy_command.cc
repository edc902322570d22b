#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "command_tree.h"
#include "commands.h"
#include "stop_on_signal.h"
#include "terminal.h"
#include "xffl/base/clock.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/config/load.h"
#include "xffl/deploy/deploy.h"
#include "xffl/deploy/deploy_image.h"
#include "xffl/deploy/deploy_job.h"
#include "xffl/facility/job_script.h"
#include "xffl/facility/services.h"

namespace xffl {
namespace {

struct DeployOptions {
  std::filesystem::path project = ".";
  std::string facility;
  std::filesystem::path bundle;
  bool remove = false, yes = false;
};

// Reports a transfer every two seconds.
transfer::OnProgress reporter(Clock& clock, const std::string& facility, const char* event) {
  auto meter = std::make_shared<transfer::RateMeter>();
  auto last = std::make_shared<Clock::MonotonicTime>(clock.monotonic());
  return [meter, last, facility, event, &clock](const transfer::Progress& progress) {
    const Clock::MonotonicTime now = clock.monotonic();
    meter->add(now.time_since_epoch(), progress);
    if (now - *last < std::chrono::seconds(2)) return;
    *last = now;
    char text[100];
    std::snprintf(text, sizeof text, "%.1f of %.1f MB, %.1f MB/s",
                  static_cast<double>(progress.done_bytes) / 1e6,
                  static_cast<double>(progress.total_bytes) / 1e6, meter->bytes_per_second() / 1e6);
    log::info(event, {{"facility", facility}, {"sent", std::string(text)}});
  };
}

deploy::OnState reporter_of_states(const std::string& facility) {
  return [facility](const std::string& message) { log::info(message, {{"facility", facility}}); };
}

void remove_bundles(facility::Services& services, const config::Facility& facility, bool asks,
                    const std::stop_token& stop) {
  const auto session = services.connect(facility);
  const std::string folder = (facility.workdir / config::kBundlesFolder).str();
  const std::vector<std::string> names = deploy::deployed(*session, facility.workdir);
  std::string question = names.empty() ? folder + " at " + facility.name.str() + " has no bundle.\n"
                                       : folder + " at " + facility.name.str() + " has:\n";
  for (const std::string& name : names) question += "  " + log::printable(name, 200) + "\n";
  question += "Jobs that run these programs fail. Remove the folder? (type yes to remove) ";
  if (asks) require_yes(question, "xffl deploy --remove --yes", folder + " was not removed");
  deploy::cancel_jobs(facility, services, stop, reporter_of_states(facility.name.str()));
  for (const std::string& name : names)
    std::printf("removing %s\n", log::printable(name, 200).c_str());
  deploy::remove(*session, facility.workdir, stop);
  std::printf("%s is removed\n", folder.c_str());
}

void remove_images(facility::Services& services, const config::Facility& facility, bool asks,
                   const std::stop_token& stop) {
  const auto session = services.connect(facility);
  const RemotePath file(facility.image.file);
  const std::vector<std::string> names = deploy::deployed_images(*session, file);
  std::string question = facility.name.str() + " has " + std::to_string(names.size()) +
                         " deployed images beside " + file.str() + ":\n";
  for (const std::string& name : names) question += "  " + log::printable(name, 200) + "\n";
  question += "Jobs that run in these images fail. Remove them? (type yes to remove) ";
  if (asks && !names.empty())
    require_yes(question, "xffl deploy --remove --yes", "the images were not removed");
  deploy::cancel_jobs(facility, services, stop, reporter_of_states(facility.name.str()));
  for (const std::string& name : names)
    std::printf("removing %s\n", log::printable(name, 200).c_str());
  deploy::remove_images(*session, file, stop);
  std::printf("images removed: %zu\n", names.size());
}

void deploy_image(const DeployOptions& options, const config::Facility& facility,
                  facility::Services& services, const std::stop_token& stop) {
  if (options.bundle.empty())
    throw Error(ErrorKind::kUsage,
                "facilities." + options.facility +
                    ".image is set: expected the image's file on this machine, or --remove");
  const bool builtin = facility.trainer_command.empty();
  const deploy::ImagePlace place{
      .file = RemotePath(facility.image.file),
      .program = facility.image.program,
      .trainer = builtin ? facility::trainer_program(facility, services.programs) : "",
      .version = XFFL_VERSION};
  const transfer::OnProgress on_progress =
      reporter(services.clock, options.facility, "sending the image");
  deploy::DeployedImage done;
  if (facility.deploy.unpack == config::UnpackPlace::kJob) {
    done = deploy::deploy_image_by_job(facility, services, options.bundle, place, stop, on_progress,
                                       reporter_of_states(options.facility));
  } else {
    const auto control = services.connect(facility);
    const auto bulk = services.connect_transfer(facility);
    done = deploy::deploy_image({*control, *bulk}, options.bundle, place, stop, on_progress);
  }
  std::printf("%s: %s %s, and %s\n", options.facility.c_str(), done.file.str().c_str(),
              done.was_there ? "was in place and is whole" : "is in place",
              done.started.empty() ? ("was not started: " + done.why_not).c_str()
                                   : ("starts there: " + done.started).c_str());
}

deploy::Deployed deploy_now(const config::Facility& facility, facility::Services& services,
                            const deploy::Bundle& bundle, const std::stop_token& stop) {
  const std::string name = facility.name.str();
  const transfer::OnProgress on_progress = reporter(services.clock, name, "sending the bundle");
  if (facility.deploy.unpack == config::UnpackPlace::kJob)
    return deploy::deploy_by_job(facility, services, bundle, stop, on_progress,
                                 reporter_of_states(name));
  const auto control = services.connect(facility);
  const auto bulk = services.connect_transfer(facility);
  return deploy::deploy({*control, *bulk}, bundle, facility.workdir, stop, on_progress);
}

void deploy_bundle(const DeployOptions& options) {
  const config::Experiment experiment = config::load_experiment(options.project);
  const config::Facility& facility = experiment.facility(FacilityName(options.facility));
  const bool by_job = facility.deploy.unpack == config::UnpackPlace::kJob;
  StopOnSignal signals(by_job ? "the command stops; a job goes on, and the same command continues "
                                "the deployment"
                              : "the deployment stops; the same command continues it");
  SystemClock clock;
  facility::Services services =
      facility::make_services(clock, experiment.project_folder, login_prompt());
  const bool has_image = !facility.image.file.empty();
  if (options.remove)
    return (has_image ? remove_images : remove_bundles)(services, facility, !options.yes,
                                                        signals.token());
  config::Facility polled = facility;
  polled.poll_interval = experiment.poll_interval(facility);
  if (has_image) return deploy_image(options, polled, services, signals.token());
  if (options.bundle.empty())
    throw Error(ErrorKind::kUsage,
                "expected the archive of a bundle, as scripts/package.sh writes it, or --remove");
  const deploy::Bundle bundle = deploy::read_bundle(options.bundle);
  const deploy::Deployed done = deploy_now(polled, services, bundle, signals.token());
  std::printf("%s: %s %s, and starts there: %s\n", options.facility.c_str(), bundle.name.c_str(),
              done.was_there ? "was in place and is intact" : "is in place", done.started.c_str());
  const std::string program = done.program.str();
  if (facility.trainer_command.empty() && facility.trainer_program == program) return;
  std::printf("in xffl.yaml: facilities.%s.trainer: bundle\n", options.facility.c_str());
}

}  // namespace

void add_deploy_command(CLI::App& app) {
  auto options = std::make_shared<DeployOptions>();
  CLI::App* command = app.add_subcommand(
      "deploy",
      "put a bundle of xffl-train and xffl-tokenize, or an image, into place at a facility");
  command->add_option("facility", options->facility, "the facility's name in xffl.yaml")
      ->type_name(kFacilityType)
      ->required();
  CLI::Option* bundle =
      command
          ->add_option("bundle", options->bundle,
                       "the archive that scripts/package.sh wrote; with image: its file")
          ->type_name(kFileType);
  command->add_option("-p,--project", options->project, "the project's folder (default: .)")
      ->type_name(kFolderType);
  CLI::Option* remove = command
                            ->add_flag("--remove", options->remove,
                                       "remove all bundles from the work folder, or all images")
                            ->excludes(bundle);
  command->add_flag("-y,--yes", options->yes, "remove without a question")->needs(remove);
  command->callback([options] { deploy_bundle(*options); });
}

}  // namespace xffl
