#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>

#include "command_tree.h"
#include "commands.h"
#include "doctor.h"
#include "project.h"
#include "stop_on_signal.h"
#include "terminal.h"
#include "xffl/base/clock.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/base/log.h"
#include "xffl/config/load.h"
#include "xffl/facility/job_script.h"
#include "xffl/facility/model_bytes.h"
#include "xffl/history/spending.h"
#include "xffl/history/store.h"
#include "xffl/plan/round_plan.h"
#include "xffl/run/federation.h"
#include "xffl/trial/trial.h"
#include "xffl/upkeep/local_retention.h"

namespace xffl {
namespace {

struct PlanFlags {
  ProjectOptions project;
  bool offline = false, json = false;
};

struct FacilityPlan {
  std::string name;
  std::string scheduler;
  facility::RenderedScript script;
  uint64_t push_bytes = 0, fetch_bytes = 0;
  bool may_pack = false;       // push_bytes is an upper bound: the model may be packed
  double node_hours = 0;       // at most: nodes times walltime; 0 without a walltime
  double idle_node_hours = 0;  // part of node_hours, at most: the kept allocation
  int jobs_left = 0;           // including this job and the last model's evaluation
  std::string answer;          // the scheduler's
  std::string check;           // the last check job; empty: none
};

// A budget of node-hours, and the jobs that still fit.
struct BudgetForecast {
  std::string key;  // "policy.budget"
  double node_hours = 0;
  double spent = 0;  // in node-hours: used, or reserved by jobs
  double next = 0;   // of one round's jobs, at most
  double left() const { return std::max(0.0, node_hours - spent); }
};

// Throws when `xffl run` would submit nothing.
history::RunState state_to_continue(const ProjectOptions& options,
                                    const config::Experiment& experiment) {
  if (options.run.empty() && !history::latest_run(options.runs())) return facility::preview_state();
  const history::RunFolder folder = options.existing_run();
  const history::RunState run_state = history::replay(history::read_events(folder.journal()));
  if (!run_state.identity) return facility::preview_state();
  run::require_same_training(experiment, folder, run_state);
  if (run_state.completed || run_state.cancelled)
    throw Error(ErrorKind::kNotFound,
                "run " + folder.run().str() +
                    (run_state.cancelled ? " was cancelled" : " is complete") +
                    ": `xffl run --new` starts a new run");
  return run_state;
}

// Whether an attempt of round `number` has pushed the round's model already.
bool has_model(const history::RunState& run_state, int number, const FacilityName& name) {
  const auto round = run_state.rounds.find(number);
  if (round == run_state.rounds.end()) return false;
  const auto facility = round->second.facilities.find(name);
  if (facility == round->second.facilities.end()) return false;
  for (const history::Attempt& attempt : facility->second.attempts)
    if (attempt.pushed) return true;
  return false;
}

std::string ask(const config::Facility& facility, facility::Services& services,
                const facility::RenderedScript& script) try {
  const submit::QueueManager& manager = facility.scheduler.manager();
  if (manager.this_machine) return "a process on this machine";
  if (manager.check == nullptr) {
    const std::string caution(manager.caution);
    return std::string(manager.title) + " has no test submission" +
           (caution.empty() ? "" : "; " + caution);
  }
  const auto session = facility::queue_session(facility, services.connect(facility));
  const submit::TestOnly answer = manager.check(
      *session, facility.scheduler, {script.job_name, script.script, script.folder}, {});
  return (answer.accepted ? "" : "REFUSED: ") + answer.answer;
} catch (const Error& error) {
  return std::string("not asked: ") + error.what();
}

// The bytes of a whole run on this machine's disk.
struct DiskForecast {
  uint64_t kept = 0;  // with policy.keep_models and policy.keep_updates
  uint64_t all = 0;   // without them
};

DiskForecast disk_forecast(const config::Experiment& experiment) {
  const facility::ModelBytes bytes = facility::model_bytes(experiment, experiment.model);
  const auto forecast = [&](const config::RoundPolicy& policy) {
    const upkeep::RoundsOnDisk rounds = upkeep::rounds_on_disk(policy, experiment.rounds);
    return bytes.on_disk(rounds.models, rounds.updates, rounds.masters,
                         experiment.facilities.size());
  };
  config::RoundPolicy all = experiment.policy;
  all.keep_models = all.keep_updates = 0;
  return {.kept = forecast(experiment.policy), .all = forecast(all)};
}

history::Spending spending_of(const ProjectOptions& options) {
  history::Spending spending;
  if (options.run.empty() && !history::latest_run(options.runs())) return spending;
  for (const history::StoredEvent& event : history::read_events(options.existing_run().journal()))
    spending.add(history::decode(event));
  return spending;
}

std::vector<BudgetForecast> forecast_budgets(const ProjectOptions& options,
                                             const config::Experiment& experiment,
                                             const std::vector<FacilityPlan>& plans) {
  constexpr double kHour = 3600;
  const history::Spending spending = spending_of(options);
  std::vector<BudgetForecast> budgets;
  double round = 0;
  for (const FacilityPlan& plan : plans) {
    const config::Facility& facility = experiment.facility(FacilityName(plan.name));
    round += plan.node_hours;
    if (facility.budget.node_hours > 0)
      budgets.push_back({.key = "facilities." + plan.name + ".budget",
                         .node_hours = facility.budget.node_hours,
                         .spent = spending.node_seconds(facility.name) / kHour,
                         .next = plan.node_hours});
  }
  if (experiment.policy.budget.node_hours > 0)
    budgets.push_back({.key = "policy.budget",
                       .node_hours = experiment.policy.budget.node_hours,
                       .spent = spending.node_seconds() / kHour,
                       .next = round});
  return budgets;
}

std::vector<FacilityPlan> make_plans(const PlanFlags& flags, const config::Experiment& experiment) {
  const history::RunState run_state = state_to_continue(flags.project, experiment);
  require_model(experiment);
  const facility::ModelBytes bytes = facility::model_bytes(experiment, experiment.model);
  SystemClock clock;
  facility::Services services = facility::make_services(
      clock, experiment.project_folder, login_prompt(), facility::kPatientConnection);
  std::vector<FacilityPlan> plans;
  const plan::Done done = run_state.done();
  const bool is_last = done.stop_rule_met || done.rounds_published >= experiment.rounds;
  const bool evaluates = experiment.policy.evaluate_last && is_last;
  for (const config::Facility& facility : experiment.facilities) {
    if (!plan::is_member(run_state.done(), facility.name) ||
        (evaluates && facility.validation.empty()))
      continue;
    FacilityPlan plan;
    plan.name = facility.name.str();
    plan.script = facility::render_script(experiment, run_state, facility.name, std::nullopt,
                                          services.programs);
    if (!has_model(run_state, plan.script.round, facility.name)) plan.push_bytes = bytes.published;
    plan.may_pack = facility.access == config::AccessKind::kSsh && plan.push_bytes > 0 &&
                    facility.transfer.pack != config::PackModels::kNever && plan.script.round > 1;
    if (plan.push_bytes > 0 && plan.script.round == 1) plan.push_bytes += bytes.adapted;
    if (!plan.script.evaluates) plan.fetch_bytes = bytes.update;
    plan.jobs_left = (is_last ? 0 : experiment.rounds - plan.script.round + 1) +
                     (experiment.policy.evaluate_last && !facility.validation.empty() ? 1 : 0);
    const submit::JobShape shape = facility.shape();
    plan.scheduler = facility.scheduler.manager().name;
    plan.node_hours = shape.node_hours(shape.walltime);
    plan.idle_node_hours = shape.node_hours(shape.keep_allocation);
    plan.answer = flags.offline ? "not asked (--offline)" : ask(facility, services, plan.script);
    plan.check = trial::describe_kept(experiment, facility, services.programs);
    plans.push_back(std::move(plan));
  }
  return plans;
}

// The facilities that take no part in the next round.
std::string not_asked(const ProjectOptions& options, const config::Experiment& experiment) {
  const history::RunState run_state = state_to_continue(options, experiment);
  std::string text;
  for (const auto& [name, left] : run_state.left)
    if (!plan::is_member(run_state.done(), name))
      text += name.str() + ": has left the run (" + log::printable(left.reason, 300) +
              "); `xffl join " + name.str() + "` makes it a member again\n";
  return text;
}

void print(const DiskForecast& disk) {
  std::printf("disk of this machine: at most %s for the whole run", gigabytes(disk.kept).c_str());
  if (disk.kept < disk.all)
    std::printf("; %s if all models and updates stayed", gigabytes(disk.all).c_str());
  else
    std::printf("; policy.keep_models and policy.keep_updates limit it");
  std::printf("\n");
}

void print(const BudgetForecast& budget) {
  std::printf("%s: %.2f of %.2f node-hours are used or reserved; ", budget.key.c_str(),
              budget.spent, budget.node_hours);
  if (budget.next > budget.left())
    std::printf("the next round does not fit\n");
  else
    std::printf("%.0f more rounds fit with whole walltimes\n",
                std::floor(budget.left() / budget.next));
}

void print(const std::vector<FacilityPlan>& plans, const std::vector<BudgetForecast>& budgets,
           const config::Experiment& experiment) {
  double node_hours = 0;
  for (const FacilityPlan& plan : plans) {
    node_hours += plan.node_hours * plan.jobs_left;
    const std::string part = plan.script.evaluates ? "evaluation of the last model"
                                                   : "round " + std::to_string(plan.script.round) +
                                                         " of " + std::to_string(experiment.rounds);
    std::printf("%s: %s, attempt %d, job %s\n", plan.name.c_str(), part.c_str(),
                plan.script.attempt, plan.script.job_name.c_str());
    std::printf("  sends %s%.1f MB, fetches %.1f MB per round", plan.may_pack ? "at most " : "",
                static_cast<double>(plan.push_bytes) / 1e6,
                static_cast<double>(plan.fetch_bytes) / 1e6);
    if (plan.node_hours > 0) std::printf("; at most %.2f node-hours per round", plan.node_hours);
    if (plan.idle_node_hours > 0)
      std::printf(", including %.2f idle (%s.keep_allocation)", plan.idle_node_hours,
                  plan.scheduler.c_str());
    std::printf("\n  %s\n", log::printable(plan.answer, 400).c_str());
    if (!plan.check.empty()) std::printf("  %s\n", log::printable(plan.check, 400).c_str());
  }
  if (node_hours > 0) std::printf("at most %.1f node-hours to the end of the run\n", node_hours);
  for (const BudgetForecast& budget : budgets) print(budget);
  print(disk_forecast(experiment));
  std::printf("nothing was submitted; `xffl render FACILITY` shows a job's script\n");
}

void print_json(const std::vector<FacilityPlan>& plans,
                const std::vector<BudgetForecast>& budgets) {
  Json json = {{"schema", 1}, {"facilities", Json::array()}};
  for (const FacilityPlan& plan : plans)
    json["facilities"].push_back({{"facility", plan.name},
                                  {"round", plan.script.round},
                                  {"attempt", plan.script.attempt},
                                  {"job_name", plan.script.job_name},
                                  {"model_folder", plan.script.model_folder.str()},
                                  {"adapter_folder", plan.script.adapter_folder.str()},
                                  {"push_bytes", plan.push_bytes},
                                  {"fetch_bytes", plan.fetch_bytes},
                                  {"node_hours", plan.node_hours},
                                  {"idle_node_hours", plan.idle_node_hours},
                                  {"answer", log::printable(plan.answer, 2000)},
                                  {"check", plan.check}});
  json["budgets"] = Json::array();
  for (const BudgetForecast& budget : budgets)
    json["budgets"].push_back({{"key", budget.key},
                               {"node_hours", budget.node_hours},
                               {"spent_node_hours", budget.spent},
                               {"round_node_hours", budget.next}});
  std::printf("%s\n", json.dump(2).c_str());
}

struct RenderFlags {
  ProjectOptions project;
  std::string facility;
  std::optional<int> round;
  std::filesystem::path out;
  bool stage = false, fresh = false, network_allowed = false;
};

history::RunState state_or_preview(const ProjectOptions& options) {
  if (options.run.empty() && !history::latest_run(options.runs())) {
    std::fprintf(stderr,
                 "xffl: no run exists yet: this is a preview, the run's folder and nonce will "
                 "differ\n");
    return facility::preview_state();
  }
  return history::replay(history::read_events(options.existing_run().journal()));
}

// Prints the command that submits the job on stdout, and the rest on stderr.
void print(const facility::StagedScript& staged, const std::string& facility) {
  std::fprintf(stderr, "xffl: round %d, attempt %d: job %s\n", staged.round, staged.attempt,
               staged.job_name.c_str());
  if (!staged.job.empty()) {
    std::fprintf(stderr, "xffl: job %s of this attempt exists already: `xffl run` follows it\n",
                 log::printable(staged.job.str(), 200).c_str());
    return;
  }
  std::fprintf(stderr,
               "xffl: the model, job.json and the script are at %s; run this line there (`xffl "
               "run` then adopts the job, or submits it itself):\n",
               facility.c_str());
  std::printf("%s\n", staged.command.c_str());
}

void stage(const RenderFlags& flags) {
  const config::Experiment experiment = config::load_experiment(flags.project.project);
  check_file_system(flags.project.runs(), flags.network_allowed);
  const history::RunFolder folder(flags.project.runs(),
                                  run_to_continue(flags.project, flags.fresh));
  if (!std::filesystem::exists(folder.global(0))) require_model(experiment);
  make_dirs(folder.path());
  log::set_file(folder.log());
  SystemClock clock;
  StopOnSignal signals("stopping; the same command continues", std::chrono::seconds(8));
  facility::Services services =
      facility::make_services(clock, experiment.project_folder, login_prompt(signals.token()));
  print(run::stage_job(experiment, folder, services, FacilityName(flags.facility), signals.token()),
        flags.facility);
}

void render(const RenderFlags& flags) {
  if (flags.stage) return stage(flags);
  const config::Experiment experiment = config::load_experiment(flags.project.project);
  SystemClock clock;
  const facility::RenderedScript rendered = facility::render_script(
      experiment, state_or_preview(flags.project), FacilityName(flags.facility), flags.round,
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

void add_plan(CLI::App& app) {
  auto flags = std::make_shared<PlanFlags>();
  CLI::App* command = app.add_subcommand(
      "plan", "show the jobs, transfers and cost of the next round; submits nothing");
  add_project_options(command, flags->project);
  command->add_flag("--offline", flags->offline, "contact no facility");
  command->add_flag("--json", flags->json, "print JSON");
  command->callback([flags] {
    const config::Experiment experiment = config::load_experiment(flags->project.project);
    const std::vector<FacilityPlan> plans = make_plans(*flags, experiment);
    const std::vector<BudgetForecast> budgets = forecast_budgets(flags->project, experiment, plans);
    if (flags->json) return print_json(plans, budgets);
    std::fputs(not_asked(flags->project, experiment).c_str(), stdout);
    print(plans, budgets, experiment);
  });
}

void add_render(CLI::App& app) {
  auto flags = std::make_shared<RenderFlags>();
  CLI::App* command = app.add_subcommand(
      "render", "print a facility's next job script, or bring it there for a submission by hand");
  command->add_option("facility", flags->facility, "the facility's name in xffl.yaml")
      ->type_name(kFacilityType)
      ->required();
  CLI::Option* run = add_project_options(command, flags->project);
  CLI::Option* round = command
                           ->add_option("--round", flags->round,
                                        "the round (default: the one in progress, or the next)")
                           ->check(CLI::PositiveNumber);
  CLI::Option* out =
      command->add_option("--out", flags->out, "write it to a file instead of the terminal")
          ->type_name(kFileType);
  CLI::Option* stage = command
                           ->add_flag("--stage", flags->stage,
                                      "push the model, job.json and the script to the facility, "
                                      "and print the command that submits the script there")
                           ->excludes(round)
                           ->excludes(out);
  command->add_flag("--new", flags->fresh, "with --stage: start another run")
      ->needs(stage)
      ->excludes(run);
  command
      ->add_flag("--allow-network-fs", flags->network_allowed,
                 "with --stage: accept runs/ on NFS, Lustre, ...; start the run from one machine "
                 "only")
      ->needs(stage);
  command->callback([flags] { render(*flags); });
}

}  // namespace

void add_plan_commands(CLI::App& app) {
  add_plan(app);
  add_render(app);
}

}  // namespace xffl
