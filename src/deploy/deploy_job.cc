#include "xffl/deploy/deploy_job.h"

#include <array>
#include <utility>

#include "placer.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/facility/side_job.h"
#include "xffl/submit/scheduler.h"

namespace xffl::deploy {
namespace {

constexpr std::chrono::minutes kWalltime{30};
constexpr std::string_view kJobsFolder = ".jobs";  // below the folder of programs
constexpr std::string_view kReportFile = "out/report.txt", kReportPart = "out/report.part";
constexpr std::string_view kUsed = "used";  // in a job's folder: a deployment has used its report
constexpr int kKeptJobs = 3;

constexpr std::string_view kBundleJobs = "xffl-trainer-", kImageJobs = "xffl-image-";
constexpr size_t kJobDigits = 8;  // of an image's hash, in the name of its jobs

// "$@": the arguments of the script. The warning before the walltime would end the shell.
constexpr const char* kRunScript =
    R"sh(trap "" USR1; sh place.sh "$@" >out/report.part && mv out/report.part out/report.txt)sh";

// `name` ends with "-" and the first digits of a hash.
facility::SidePlace job_place(const RemotePath& workdir, const std::string& name) {
  return {.parent = programs_folder(workdir) / kJobsFolder / name,
          .name = "xffl-deploy-" + name.substr(name.rfind('-') + 1),
          .report = std::string(kReportFile)};
}

// One task without an image, for a short time.
config::Facility shape_of(const config::Facility& facility, const PlaceScript& script) {
  config::Facility shape = facility;
  const submit::QueueManager& manager = shape.scheduler.manager();
  if (manager.one_task != nullptr) manager.one_task(shape.scheduler);
  if (manager.shorten != nullptr) manager.shorten(shape.scheduler, 1, kWalltime);
  if (manager.use_cpu_queue != nullptr) manager.use_cpu_queue(shape.scheduler);
  shape.world_size = 1;
  shape.image = {};
  shape.trainer_command = {"sh", "-c", kRunScript, "sh"};
  for (const std::string& argument : script.arguments)
    shape.trainer_command.push_back(facility.on_compute_nodes(argument));
  return shape;
}

class JobPlacer final : public Placer {
 public:
  JobPlacer(const config::Facility& facility, facility::Services& services, const std::string& name,
            const PlaceScript& script, std::stop_token stop, const OnState& on_state)
      : shape_(shape_of(facility, script)),
        script_(script.text),
        on_state_(on_state),
        job_(facility, facility.poll_interval, services, job_place(facility.workdir, name),
             std::move(stop), on_state) {}

  remote::Session& session() const { return job_.session(); }

  bool on_login_node() const override { return false; }

  std::optional<Report> earlier() override {
    if (job_.number() == 0 || session().stat(job_.folder() / kUsed)) return std::nullopt;
    // In this order: a job may report between the two.
    if (!job_.is_under_way() && !job_.has_report()) return std::nullopt;
    return follow();
  }

  Report run() override {
    job_.submit(shape_, {{"out/", ""}, {"place.sh", std::string(script_)}});
    return follow();
  }

  void close() override {
    remote::write_text_atomic(session(), job_.folder() / kUsed, "");
    const int old = job_.number() - kKeptJobs;
    if (old > 0) session().remove_tree(job_.folder().parent() / ("job" + std::to_string(old)));
  }

 private:
  Report follow() {
    std::optional<Report> report;
    if (!job_.follow([&] { return (report = look()).has_value(); }))
      throw Error(ErrorKind::kFailed, "job " + job_.id().str() + " has ended without a report; " +
                                          (job_.folder() / submit::kJobOutput).str() +
                                          " ends with:" + job_.last_output());
    return *std::move(report);
  }

  std::optional<Report> look() {
    const std::array queries{remote::FileQuery{std::string(kReportFile), kMaxReportBytes},
                             remote::FileQuery{std::string(kReportPart), kMaxReportBytes}};
    const std::vector<remote::FileView> views = session().look(job_.folder(), queries);
    if (views.at(0).info) {
      Report report = parse_report(views[0].bytes);
      if (!report.whole) {
        close();  // the next deployment does not read it again
        throw Error(ErrorKind::kCorrupt, (job_.folder() / kReportFile).str() +
                                             " is no report of a deployment's job: its last line "
                                             "should be 'end'");
      }
      return report;
    }
    const std::string step = parse_report(views.at(1).bytes).step;
    if (!step.empty() && std::exchange(step_, step) != step && on_state_)
      on_state_("job " + job_.id().str() + " " + step);
    return std::nullopt;
  }

  const config::Facility shape_;
  const std::string_view script_;
  const OnState& on_state_;
  facility::SideJob job_;
  std::string step_;
};

transfer::Endpoint without_hashing(remote::Session& control, remote::Session& bulk) {
  transfer::Endpoint endpoint{control, bulk};
  endpoint.may_hash = false;
  return endpoint;
}

}  // namespace

config::Facility job_shape(const config::Facility& facility, const Bundle& bundle) {
  return shape_of(facility, bundle_script(facility.workdir, bundle));
}

Deployed deploy_by_job(const config::Facility& facility, facility::Services& services,
                       const Bundle& bundle, std::stop_token stop,
                       const transfer::OnProgress& on_progress, const OnState& on_state) {
  JobPlacer placer(facility, services, bundle.name, bundle_script(facility.workdir, bundle), stop,
                   on_state);
  const auto bulk = services.connect_transfer(facility);
  return deploy_with(placer, without_hashing(placer.session(), *bulk), bundle, facility.workdir,
                     stop, on_progress);
}

DeployedImage deploy_image_by_job(const config::Facility& facility, facility::Services& services,
                                  const std::filesystem::path& image, const ImagePlace& place,
                                  std::stop_token stop, const transfer::OnProgress& on_progress,
                                  const OnState& on_state) {
  const ImageToDeploy read = read_image(image, place);
  JobPlacer placer(facility, services,
                   std::string(kImageJobs) + read.content().sha256.substr(0, kJobDigits),
                   image_script(read), stop, on_state);
  const auto bulk = services.connect_transfer(facility);
  return deploy_image_with(placer, without_hashing(placer.session(), *bulk), read, stop,
                           on_progress);
}

void cancel_jobs(const config::Facility& facility, facility::Services& services,
                 std::stop_token stop, const OnState& on_state) {
  std::vector<std::string> names;
  try {
    names = services.connect(facility)->list(programs_folder(facility.workdir) / kJobsFolder);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kNotFound) throw;
  }
  for (const std::string& name : names) {
    if (!name.starts_with(kBundleJobs) && !name.starts_with(kImageJobs)) continue;
    facility::SideJob job(facility, facility.poll_interval, services,
                          job_place(facility.workdir, name), stop, on_state);
    if (!job.is_under_way()) continue;
    job.cancel();
    if (on_state) on_state("job " + job.id().str() + " is cancelled");
  }
}

}  // namespace xffl::deploy
