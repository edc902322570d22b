// The row of queue_managers() for PBS: its keys in xffl.yaml, their checks and its job scripts.
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "pbs_commands.h"
#include "queue_answers.h"
#include "queue_shape.h"
#include "rank_script.h"
#include "xffl/base/error.h"
#include "xffl/job/fields.h"
#include "xffl/submit/pbs.h"
#include "xffl/submit/queue_manager.h"
#include "xffl/submit/template.h"

namespace xffl::submit {
namespace {

constexpr std::string_view kPbsName = "[A-Za-z0-9][A-Za-z0-9_.@-]{0,127}";
constexpr std::string_view kPbsResource =
    "[A-Za-z][A-Za-z0-9_]{0,63}=[A-Za-z0-9_.][A-Za-z0-9_.:+@-]{0,127}";
// In `select`, a ':' begins another resource and a '+' another chunk.
constexpr std::string_view kPbsChunkResource =
    "[A-Za-z][A-Za-z0-9_]{0,63}=[A-Za-z0-9_.][A-Za-z0-9_.@-]{0,127}";

std::string_view pbs_name_of(std::string_view resource) {
  return resource.substr(0, resource.find('='));
}

std::string pbs_own_key_problem(std::string_view resource) {
  constexpr auto kOwnKeys = std::to_array<std::pair<std::string_view, std::string_view>>({
      {"walltime", "time"},
      {"select", "nodes"},
      {"nodes", "nodes"},
      {"ncpus", "cpus_per_node"},
      {"mpiprocs", "tasks_per_node"},
      {"ngpus", "gpus_per_node"},
  });
  for (const auto& [name, key] : kOwnKeys)
    if (pbs_name_of(resource) == name) return "has a key of its own: '" + std::string(key) + "'";
  return {};
}

std::string validate_pbs_chunk(std::string_view resource) {
  if (pbs_name_of(resource) == "place") return "holds for the whole job: name it in 'resources'";
  return pbs_own_key_problem(resource);
}

// qsub refuses a node's resource in a -l of its own beside `select`.
std::string validate_pbs_resource(std::string_view resource) {
  if (pbs_name_of(resource) == "mem" || pbs_name_of(resource) == "vmem")
    return "is a resource of a node: name it in 'chunk'";
  return pbs_own_key_problem(resource);
}

const job::FieldTable& pbs_keys() {
  using S = PbsSettings;
  using job::field;
  static const job::FieldTable keys({
      field("account", &S::account, "the account that pays for the jobs (-A)",
            {.pattern = kPbsName, .shape = "an account's name"}),
      field("project", &S::project, "the project of the jobs (-P)",
            {.pattern = kPbsName, .shape = "a project's name"}),
      field("queue", &S::queue, "the queue (-q)", {.pattern = kPbsName, .shape = "a queue's name"}),
      field("nodes", &S::nodes, "nodes of a job", {.min = 1, .max = kMaxRanks}),
      field("tasks_per_node", &S::tasks_per_node, "ranks on a node", {.min = 1, .max = 4096}),
      field("cpus_per_node", &S::cpus_per_node, "CPUs of a node (ncpus); 0: one per rank",
            {.max = 4096}),
      field("gpus_per_node", &S::gpus_per_node, "GPUs of a node (ngpus)", {.max = 64}),
      field("chunk", &S::chunk,
            "further resources of a node, in its chunk of select, such as mem=480gb or "
            "gpu_type=a100",
            {.pattern = kPbsChunkResource,
             .shape = "a resource such as mem=480gb",
             .validate = validate_pbs_chunk,
             .omit_default = true}),
      field("resources", &S::resources,
            "further resources of the job (-l), such as filesystems=home or place=scatter:excl",
            {.pattern = kPbsResource,
             .shape = "a resource such as filesystems=home",
             .validate = validate_pbs_resource}),
      time_field<S>("walltime: a number with one unit, such as 90m or 12h"),
      warning_field<S>(),
      settle_time_field<S>("the time in which a job may appear after qsub's answer was lost"),
      command_timeout_field<S>("the time limit of one PBS command"),
  });
  return keys;
}

void complete_pbs(QueueSettings& settings, const SectionKeys& keys) {
  const auto& pbs = settings.as<PbsSettings>();
  require_warning_before_end(pbs, keys);
  if (pbs.cpus_per_node > 0 && pbs.cpus_per_node < pbs.tasks_per_node)
    keys.problem("cpus_per_node", "'cpus_per_node' should be at least 'tasks_per_node'");
}

void one_pbs_task(QueueSettings& settings) {
  auto& pbs = settings.as<PbsSettings>();
  pbs.cpus_per_node = pbs.cpus();
  pbs.nodes = pbs.tasks_per_node = 1;
}

JobShape pbs_shape(const QueueSettings& settings, int world_size) {
  JobShape shape = shape_of<PbsSettings>(settings, world_size);
  shape.gpus_per_node = settings.as<PbsSettings>().gpus_per_node;
  return shape;
}

constexpr QueueManager kPbs{
    .name = "pbs",
    .title = "PBS",
    .settings = settings_type<PbsSettings>,
    .keys = pbs_keys,
    .complete = complete_pbs,
    .shape = pbs_shape,
    .one_task = one_pbs_task,
    .shorten = shorten_to<PbsSettings>,
    .image_and_modules = true,
    .plain_workdir = true,
    .poll_interval = std::chrono::seconds(60),
    .script_values =
        [](const ScriptRequest& request) {
          const auto& pbs = request.settings.as<PbsSettings>();
          return rank_script_values(
              request, pbs_options(pbs, request.job_name, request.folder, request.may_requeue),
              pbs.time, pbs.warning);
        },
    .make =
        [](const QueueSettings& settings, std::shared_ptr<remote::Session> session, Clock& clock) {
          return make_pbs_scheduler(settings.as<PbsSettings>(), std::move(session), clock);
        },
    .program = "qstat",
    .caution = "PBS was written from its documented formats and has not run on a real site",
};

}  // namespace

const QueueManager& pbs_queue_manager() { return kPbs; }

std::vector<std::string> pbs_options(const PbsSettings& settings, const std::string& job_name,
                                     const RemotePath& folder, bool may_requeue) {
  if (settings.nodes < 1 || settings.tasks_per_node < 1 || settings.time.count() < 1)
    throw Error(ErrorKind::kConfig, "a job needs nodes, tasks per node and a walltime");
  if (folder.str().find(':') != std::string::npos)
    throw Error(ErrorKind::kConfig, "pbs: the work folder " + folder.str() +
                                        " has a ':', before which qsub expects a host");
  std::vector<std::string> options;
  const auto add = [&](const std::string& flag, const std::string& key, const std::string& value) {
    check_directive_word("pbs." + key, value);
    options.push_back(flag + " " + value);
  };
  add("-N", "job name", job_name);
  add("-o", "work folder", folder.str() + "/" + std::string(kJobOutput));
  options.emplace_back("-j oe");   // stdout and stderr in one file
  options.emplace_back("-k doe");  // written to its place meanwhile, not copied there at the end
  options.emplace_back("-S /bin/bash");
  options.emplace_back("-m n");  // no mail
  options.emplace_back(may_requeue ? "-r y" : "-r n");
  if (!settings.account.empty()) add("-A", "account", settings.account);
  if (!settings.project.empty()) add("-P", "project", settings.project);
  if (!settings.queue.empty()) add("-q", "queue", settings.queue);
  std::string select = "select=" + std::to_string(settings.nodes) +
                       ":ncpus=" + std::to_string(settings.cpus()) +
                       ":mpiprocs=" + std::to_string(settings.tasks_per_node);
  if (settings.gpus_per_node > 0) select += ":ngpus=" + std::to_string(settings.gpus_per_node);
  for (const std::string& resource : settings.chunk) select += ":" + resource;
  add("-l", "chunk", select);
  bool placed = false;
  for (const std::string& resource : settings.resources) {
    placed = placed || resource.starts_with("place=");
    add("-l", "resources", resource);
  }
  if (!placed) options.emplace_back("-l place=scatter");  // each chunk on a node of its own
  options.push_back("-l walltime=" + std::to_string(settings.time.count()));
  return options;
}

std::shared_ptr<Scheduler> make_pbs_scheduler(PbsSettings settings,
                                              std::shared_ptr<remote::Session> session,
                                              Clock& clock) {
  const CommandTimes times{settings.settle_time, settings.command_timeout};
  return make_command_scheduler(std::make_unique<PbsCommands>(std::move(settings)), times,
                                std::move(session), clock);
}

}  // namespace xffl::submit
