#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>

#include "command_tree.h"
#include "commands.h"
#include "project.h"
#include "round_display.h"
#include "stop_on_signal.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"
#include "xffl/config/load.h"
#include "xffl/facility/job_script.h"
#include "xffl/launch/ranks.h"

namespace xffl {
namespace {

struct SimulateOptions {
  std::string program;
  std::string venv;
  std::string project;
  std::string facility;
  std::string image;
  bool image_sees_gpus = false;
  int world_size = 1;
  std::vector<std::string> arguments;
};

bool is_simulate(std::string_view word) { return word == "simulate" || word == "exec"; }

int run_program(SimulateOptions options) {
  if (options.program.empty() && !options.arguments.empty()) {  // xffl exec -- PROGRAM ARGUMENT...
    options.program = options.arguments.front();
    options.arguments.erase(options.arguments.begin());
  }
  if (options.program.empty())
    throw Error(ErrorKind::kUsage,
                "nothing to run: give a program (xffl simulate PROGRAM --world-size N) or a "
                "project (xffl simulate -p PROJECT --world-size N)");
  launch::RankSpec spec;
  if (!options.venv.empty()) spec.env = launch::venv_environment(options.venv);
  spec.argv = launch::program_argv(options.program, spec.env, options.arguments);
  if (!options.image.empty()) {
    std::vector<std::string> inside{"apptainer", "exec"};
    if (options.image_sees_gpus) inside.emplace_back("--nv");
    inside.push_back(std::filesystem::absolute(options.image).string());
    spec.argv.insert(spec.argv.begin(), inside.begin(), inside.end());
  }
  spec.world_size = options.world_size;
  // Python would buffer its output in a pipe until the end of the program.
  if (std::getenv("PYTHONUNBUFFERED") == nullptr) spec.env["PYTHONUNBUFFERED"] = "1";
  return launch::run_ranks(spec, {});
}

const config::Facility& choose(const config::Experiment& experiment, const std::string& name) {
  if (!name.empty()) return experiment.facility(FacilityName(name));
  if (experiment.facilities.size() == 1) return experiment.facilities.front();
  std::string names;
  for (const config::Facility& facility : experiment.facilities) names += " " + facility.name.str();
  throw Error(ErrorKind::kUsage,
              "the project has several facilities, choose one with --facility:" + names);
}

void print_report(const job::JobReport& report) {
  std::printf("\n%-22s %d\n", "ranks", report.world_size);
  std::printf("%-22s %lld\n", "steps", static_cast<long long>(report.steps));
  std::printf("%-22s %lld\n", "tokens", static_cast<long long>(report.tokens));
  std::printf("%-22s %.4f (last step %.4f)\n", "training loss", report.train_loss,
              report.train_loss_last);
  if (report.train_accuracy > 0)
    std::printf("%-22s %.4f (last step %.4f)\n", "training accuracy", report.train_accuracy,
                report.train_accuracy_last);
  for (const job::ValidationResult& result : report.validation) {
    const std::string name = "validation " + result.name;
    if (job::is_measured_after(report, result))
      std::printf("%-22s %.4f -> %.4f (perplexity %.1f -> %.1f)\n", name.c_str(), result.nll_before,
                  result.nll_after, std::exp(result.nll_before), std::exp(result.nll_after));
    else
      std::printf("%-22s %.4f (perplexity %.1f), not measured after the training\n", name.c_str(),
                  result.nll_before, std::exp(result.nll_before));
  }
  std::printf("%-22s %.0f\n", "tokens/s", report.tokens_per_second);
  std::printf("%-22s %.0f MB (largest rank)\n", "peak memory",
              static_cast<double>(report.peak_memory_bytes) / 1e6);
  std::printf("%-22s %.1f s (%.1f s training)\n", "time", report.total_seconds,
              report.train_seconds);
}

// The trainer in an image, as at a site: the facility's own image keys hold, but for the file.
void run_in_image(config::Facility& facility, const SimulateOptions& options) {
  facility.image.file = std::filesystem::absolute(options.image).string();
  if (options.image_sees_gpus) facility.image.gpu = config::ImageGpu::kNv;
  std::vector<std::string> command = facility::image_command(facility, facility.workdir);
  const std::vector<std::string> own = facility.trainer_command;
  if (own.empty()) command.emplace_back("xffl-train");
  command.insert(command.end(), own.begin(), own.end());
  facility.trainer_command = command;
}

// Runs the first round of one facility under <project>/simulations: a federation of one facility
// with local objects, whose job equals a job of `xffl run`.
int simulate_facility(const SimulateOptions& options) {
  const std::filesystem::path project = options.project;
  config::Experiment experiment = config::load_experiment(project);
  config::Facility chosen = choose(experiment, options.facility);
  const std::filesystem::path folder = std::filesystem::absolute(project) / "simulations";
  chosen.access = config::AccessKind::kLocal;
  chosen.scheduler = submit::QueueSettings("process");
  chosen.template_file.clear();
  chosen.workdir = RemotePath((folder / "work").lexically_normal().string());
  chosen.world_size = options.world_size;
  chosen.compute_mounts.clear();  // the job runs on this machine, in this shell
  chosen.login_shell = false;
  if (!chosen.prepared.empty() && !std::filesystem::exists(chosen.train_data.front()))
    throw Error(
        ErrorKind::kNotFound,
        "this machine, which trains, has no " + chosen.train_data.front() +
            ": copy the shards of `xffl prepare` there, or start the command at the facility");
  if (!options.image.empty()) run_in_image(chosen, options);
  experiment.facilities = {chosen};
  experiment.policy.on_missing = config::OnMissing::kFail;
  experiment.policy.max_attempts = 1;
  experiment.policy.poll_interval = std::chrono::milliseconds(300);
  // The learning-rate schedule still spans all rounds of the experiment.
  experiment.rounds = 1;

  const history::RunFolder run(folder / "runs", history::next_run(folder / "runs"));
  StopOnSignal signals;
  run_with_display(experiment, run, signals.token());
  print_report(job::read_job_report(run.facility(1, chosen.name) / "report.json"));
  std::printf("%-22s %s\n", "files", run.path().c_str());
  return 0;
}

int simulate(const SimulateOptions& options) {
  if (options.image_sees_gpus && options.image.empty())
    throw Error(ErrorKind::kUsage, "--nv is for a program in an image: give --image FILE");
  if (!options.image.empty() && !std::filesystem::exists(options.image))
    throw Error(ErrorKind::kNotFound, options.image + ": there is no such image");
  if (!options.image.empty() && !options.venv.empty())
    throw Error(ErrorKind::kUsage,
                "--venv names an environment of this machine, which a program "
                "in an image does not use: leave out --venv or --image");
  if (options.project.empty()) {
    if (!options.facility.empty())
      throw Error(ErrorKind::kUsage, "--facility names a facility of a project: give -p PROJECT");
    return run_program(options);
  }
  if (!options.program.empty() || !options.arguments.empty() || !options.venv.empty())
    throw Error(ErrorKind::kUsage,
                "-p PROJECT runs that project's training: it takes no program, --venv or "
                "--arguments");
  return simulate_facility(options);
}

}  // namespace

CommandLine split_command_line(int argc, const char* const* argv) {
  CommandLine line;
  std::string_view command;
  int i = 1;
  for (; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (is_simulate(command) && (word == "--arguments" || word == "--")) break;
    if (command.empty() && !word.starts_with('-')) command = word;
    line.own.emplace_back(word);
  }
  for (++i; i < argc; ++i) line.program.emplace_back(argv[i]);
  return line;
}

void add_simulate_commands(CLI::App& app, int& exit_code,
                           std::vector<std::string> program_arguments) {
  auto options = std::make_shared<SimulateOptions>();
  options->arguments = std::move(program_arguments);
  CLI::App* command = app.add_subcommand(
      "simulate", "run a program, or one facility's training, as N ranks on this machine");
  command->alias("exec");
  command->add_option("program", options->program, "a program, or a Python script (*.py)")
      ->type_name(kFileType);
  command->add_option("--world-size", options->world_size, "number of ranks")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command->add_option("--venv", options->venv, "Python environment: its folder or bin/activate")
      ->type_name(kPathType);
  command
      ->add_option("-p,--project", options->project,
                   "run the training of a facility of this project")
      ->type_name(kFolderType);
  command->add_option("--facility", options->facility, "the facility, when the project has several")
      ->type_name(kFacilityType);
  command
      ->add_option("--image", options->image,
                   "run the ranks in this image (*.sif, a squashfs file or a folder) by apptainer")
      ->type_name(kPathType);
  command->add_flag("--nv", options->image_sees_gpus, "with --image: NVIDIA's GPUs are visible");
  command->footer(
      "  xffl simulate PROGRAM [--world-size N] [--venv DIR] [--arguments ARGUMENT...]\n"
      "  xffl simulate -p PROJECT [--facility NAME] [--world-size N] [--image FILE]\n"
      "  xffl exec [--world-size N] -- PROGRAM [ARGUMENT...]\n\n"
      "The program gets all arguments after --arguments (or --) unchanged. Each rank finds RANK,\n"
      "WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT in its environment.\n"
      "When one rank fails, xffl ends all, and exits with the exit code of that rank.");
  command->callback([options, &exit_code] { exit_code = simulate(*options); });
}

}  // namespace xffl
