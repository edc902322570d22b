#include "simulate_facility.h"

#include <cmath>
#include <cstdio>

#include "project.h"
#include "round_display.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"
#include "xffl/config/load.h"

namespace xffl {
namespace {

const config::Facility& choose(const config::Experiment& experiment, const std::string& name) {
  if (!name.empty()) return experiment.facility(FacilityName(name));
  if (experiment.facilities.size() == 1) return experiment.facilities.front();
  std::string names;
  for (const config::Facility& facility : experiment.facilities) names += " " + facility.name.str();
  throw Error(ErrorKind::kUsage, "say which facility to simulate with --facility:" + names);
}

void print_report(const job::JobReport& report) {
  std::printf("\n%-22s %d\n", "ranks", report.world_size);
  std::printf("%-22s %lld\n", "steps", static_cast<long long>(report.steps));
  std::printf("%-22s %lld\n", "tokens", static_cast<long long>(report.tokens));
  std::printf("%-22s %.4f (last step %.4f)\n", "training loss", report.train_loss,
              report.train_loss_last);
  for (const job::ValidationResult& result : report.validation)
    std::printf("%-22s %.4f -> %.4f (perplexity %.1f -> %.1f)\n",
                ("validation " + result.name).c_str(), result.nll_before, result.nll_after,
                std::exp(result.nll_before), std::exp(result.nll_after));
  std::printf("%-22s %.0f\n", "tokens/s", report.tokens_per_second);
  std::printf("%-22s %.0f MB (largest rank)\n", "peak memory",
              static_cast<double>(report.peak_memory_bytes) / 1e6);
  std::printf("%-22s %.1f s (%.1f s training)\n", "time", report.total_seconds,
              report.train_seconds);
}

}  // namespace

int simulate_facility(const std::filesystem::path& project, const std::string& facility,
                      int world_size) {
  config::Experiment experiment = config::load_experiment(project);
  config::Facility chosen = choose(experiment, facility);
  const std::filesystem::path folder = std::filesystem::absolute(project) / "simulations";
  chosen.access = config::AccessKind::kLocal;
  chosen.scheduler = config::SchedulerKind::kProcess;
  chosen.template_file.clear();
  chosen.workdir = RemotePath((folder / "work").lexically_normal().string());
  chosen.world_size = world_size;
  experiment.facilities = {chosen};
  experiment.policy.on_missing = config::OnMissing::kFail;
  experiment.policy.max_attempts = 1;
  experiment.policy.poll_interval = std::chrono::milliseconds(300);
  // The schedule still spans the whole experiment; only its first round is run.
  experiment.rounds = 1;

  const history::RunFolder run(folder / "runs", history::next_run(folder / "runs"));
  make_dirs(run.path());
  log::set_file(run.log());
  SystemClock clock;
  facility::Services services = facility::make_services(clock, experiment.project_folder);
  RoundDisplay display(1);
  StopOnSignal signals;
  run::run_federation(experiment, run, services, signals.token(), display.observer());
  print_report(job::read_job_report(run.facility(1, chosen.name) / "report.json"));
  std::printf("%-22s %s\n", "files", run.path().c_str());
  return 0;
}

}  // namespace xffl
