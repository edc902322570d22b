// Grid Engine's row of queue_managers(): its keys in xffl.yaml, their checks, its job scripts, and
// its checks for `xffl doctor`, `xffl plan` and `xffl usage`.
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "grid_engine_commands.h"
#include "queue_answers.h"
#include "queue_shape.h"
#include "rank_script.h"
#include "xffl/base/error.h"
#include "xffl/job/fields.h"
#include "xffl/submit/grid_engine.h"
#include "xffl/submit/queue_manager.h"
#include "xffl/submit/template.h"

namespace xffl::submit {
namespace {

constexpr std::string_view kGridEngineName = "[A-Za-z0-9][A-Za-z0-9_.@-]{0,127}";
constexpr std::string_view kGridEngineQueue = "[A-Za-z0-9*@][A-Za-z0-9_.@*,-]{0,255}";
constexpr std::string_view kGridEngineResource =
    "[A-Za-z][A-Za-z0-9_.]{0,63}(=[A-Za-z0-9_.*|:@-]{1,127})?";

// Resources that have a key of their own.
std::string validate_grid_engine_resource(std::string_view resource) {
  for (const std::string_view own : {"h_rt", "s_rt"})
    if (resource.substr(0, resource.find('=')) == own) return "has a key of its own: 'time'";
  return {};
}

const job::FieldTable& grid_engine_keys() {
  using S = GridEngineSettings;
  using job::field;
  static const job::FieldTable keys({
      field("project", &S::project, "the project that pays for the jobs (-P)",
            {.pattern = kGridEngineName, .shape = "a Grid Engine project"}),
      field("queue", &S::queue, "one queue, or several with commas (-q)",
            {.pattern = kGridEngineQueue, .shape = "a queue's name"}),
      field("parallel_environment", &S::parallel_environment,
            "the parallel environment (-pe); required for several slots. Its allocation rule must "
            "give each node the same number of slots",
            {.pattern = kGridEngineName, .shape = "a parallel environment's name"}),
      field("nodes", &S::nodes, "nodes of a job", {.min = 1, .max = kMaxRanks}),
      field("tasks_per_node", &S::tasks_per_node, "ranks on a node", {.min = 1, .max = 4096}),
      field("slots_per_node", &S::slots_per_node, "slots of a node; 0: one per rank",
            {.max = 4096}),
      field("resources", &S::resources, "resources of a slot or job (-l), such as gpu=1",
            {.pattern = kGridEngineResource,
             .shape = "a resource such as gpu=1",
             .validate = validate_grid_engine_resource}),
      time_field<S>("walltime (h_rt): a number with one unit, such as 90m or 12h"),
      warning_field<S>(),
      settle_time_field<S>("the time in which a job may appear after qsub's answer was lost"),
      command_timeout_field<S>("the time limit of one Grid Engine command"),
  });
  return keys;
}

void complete_grid_engine(QueueSettings& settings, const SectionKeys& keys) {
  const auto& engine = settings.as<GridEngineSettings>();
  require_warning_before_end(engine, keys);
  if (engine.slots_per_node > 0 && engine.slots_per_node < engine.tasks_per_node)
    keys.problem("slots_per_node", "'slots_per_node' should be at least 'tasks_per_node'");
  if (engine.slots() > 1 && engine.parallel_environment.empty())
    keys.problem("parallel_environment", "a job of " + std::to_string(engine.slots()) +
                                             " slots needs a 'parallel_environment'; `qconf -spl` "
                                             "lists them at the facility");
}

void one_grid_engine_task(QueueSettings& settings) {
  auto& engine = settings.as<GridEngineSettings>();
  engine.slots_per_node = engine.slots() / engine.nodes;
  engine.nodes = engine.tasks_per_node = 1;
}

// In the order of the jobs' numbers.
bool earlier(const AccountedStart& a, const AccountedStart& b) {
  return std::pair(a.job.str().size(), std::pair(a.job.str(), a.start)) <
         std::pair(b.job.str().size(), std::pair(b.job.str(), b.start));
}

constexpr QueueManager kGridEngine{
    .name = "gridengine",
    .title = "Grid Engine",
    .settings = settings_type<GridEngineSettings>,
    .keys = grid_engine_keys,
    .complete = complete_grid_engine,
    .shape = shape_of<GridEngineSettings>,
    .one_task = one_grid_engine_task,
    .shorten = shorten_to<GridEngineSettings>,
    .image_and_modules = true,
    .plain_workdir = true,
    .poll_interval = std::chrono::seconds(60),
    .script_values =
        [](const ScriptRequest& request) {
          const auto& engine = request.settings.as<GridEngineSettings>();
          return rank_script_values(
              request,
              grid_engine_options(engine, request.job_name, request.folder, request.may_requeue),
              engine.time, engine.warning);
        },
    .make =
        [](const QueueSettings& settings, std::shared_ptr<remote::Session> session, Clock& clock) {
          return make_grid_engine_scheduler(settings.as<GridEngineSettings>(), std::move(session),
                                            clock);
        },
    .program = "qstat",
    .version_option = "-help",
    .submit_by_hand = "qsub",
    .check =
        [](remote::Session& session, const QueueSettings& settings, const JobRequest& request,
           std::stop_token stop) {
          return verify_grid_engine(session, settings.as<GridEngineSettings>(), request,
                                    std::move(stop));
        },
    .accounted_starts =
        [](remote::Session& session, const QueueSettings& settings,
           std::span<const SubmittedJob> jobs, std::stop_token stop) {
          return grid_engine_starts(session, settings.as<GridEngineSettings>(), jobs,
                                    std::move(stop));
        },
};

}  // namespace

const QueueManager& grid_engine_queue_manager() { return kGridEngine; }

std::vector<std::string> grid_engine_options(const GridEngineSettings& settings,
                                             const std::string& job_name, const RemotePath& folder,
                                             bool may_requeue) {
  if (settings.nodes < 1 || settings.tasks_per_node < 1 || settings.time.count() < 1)
    throw Error(ErrorKind::kConfig, "a job needs nodes, tasks per node and a walltime");
  std::vector<std::string> options;
  const auto add = [&](const std::string& flag, const std::string& key, const std::string& value) {
    check_directive_word("gridengine." + key, value);
    options.push_back(flag + " " + value);
  };
  add("-N", "job name", job_name);
  add("-wd", "work folder", folder.str());
  options.push_back("-o " + std::string(kJobOutput));
  options.emplace_back("-j y");  // stdout and stderr in one file
  options.emplace_back("-S /bin/bash");
  options.emplace_back(may_requeue ? "-r y" : "-r n");
  // A duplicate job, submitted because the first answer was lost, waits until the first job ends.
  options.push_back("-hold_jid " + job_name);
  if (!settings.project.empty()) add("-P", "project", settings.project);
  if (!settings.queue.empty()) add("-q", "queue", settings.queue);
  if (settings.slots() > 1 || !settings.parallel_environment.empty()) {
    check_directive_word("gridengine.parallel_environment", settings.parallel_environment);
    options.push_back("-pe " + settings.parallel_environment + " " +
                      std::to_string(settings.slots()));
  }
  for (const std::string& resource : settings.resources) add("-l", "resources", resource);
  options.push_back("-l h_rt=" + std::to_string(settings.time.count()));
  return options;
}

std::shared_ptr<Scheduler> make_grid_engine_scheduler(GridEngineSettings settings,
                                                      std::shared_ptr<remote::Session> session,
                                                      Clock& clock) {
  const CommandTimes times{settings.settle_time, settings.command_timeout};
  return make_command_scheduler(std::make_unique<GridEngineCommands>(std::move(settings)), times,
                                std::move(session), clock);
}

TestOnly verify_grid_engine(remote::Session& session, const GridEngineSettings& settings,
                            const JobRequest& request, std::stop_token stop) {
  const GridEngineCommands commands(settings);
  const auto answer = session.run(commands.verify(request), request.script,
                                  settings.command_timeout, std::move(stop));
  return {
      answer.exit_code == 0,
      answer.exit_code != 0 && commands.read_submission(answer).kind == Submission::Kind::kRejected,
      one_line(answer.err + answer.out)};
}

std::vector<AccountedStart> grid_engine_starts(remote::Session& session,
                                               const GridEngineSettings& settings,
                                               std::span<const SubmittedJob> jobs,
                                               std::stop_token stop) {
  constexpr size_t kJobsPerQuestion = 100;
  const GridEngineCommands commands(settings);
  std::map<JobId, std::string> names;
  for (const SubmittedJob& job : jobs)
    if (is_decimal_id(job.id.str()) && is_plain_name(job.name)) names.emplace(job.id, job.name);
  std::vector<AccountedStart> all;
  std::vector<std::string> some;
  const auto ask = [&] {
    if (some.empty()) return;
    const auto answer = session.run(commands.accounting(some), "", settings.command_timeout, stop);
    const auto starts = answer.exit_code == 0 ? commands.read_starts(answer.out) : std::nullopt;
    if (!starts) throw Error(ErrorKind::kRemote, "qacct does not answer: " + failure_of(answer));
    for (const NamedStart& each : *starts)
      if (const auto job = names.find(each.start.job);
          job != names.end() && job->second == each.name)
        all.push_back(each.start);
    some.clear();
  };
  for (const auto& [id, name] : names) {
    some.push_back(name);
    if (some.size() == kJobsPerQuestion) ask();
  }
  ask();
  std::sort(all.begin(), all.end(), earlier);
  return all;
}

}  // namespace xffl::submit
