// The row of queue_managers() for Flux: its keys in xffl.yaml, their checks and its job scripts.
#include <string>
#include <utility>
#include <vector>

#include "flux_commands.h"
#include "queue_answers.h"
#include "queue_shape.h"
#include "rank_script.h"
#include "xffl/base/error.h"
#include "xffl/job/fields.h"
#include "xffl/submit/flux.h"
#include "xffl/submit/queue_manager.h"
#include "xffl/submit/template.h"

namespace xffl::submit {
namespace {

constexpr std::string_view kFluxName = "[A-Za-z0-9][A-Za-z0-9_.-]{0,127}";
constexpr std::string_view kFluxConstraint = "[A-Za-z0-9][A-Za-z0-9_.:,-]{0,127}";

const job::FieldTable& flux_keys() {
  using S = FluxSettings;
  using job::field;
  static const job::FieldTable keys({
      field("queue", &S::queue, "the queue (--queue)",
            {.pattern = kFluxName, .shape = "a queue's name"}),
      field("bank", &S::bank, "the bank that pays for the jobs (--bank)",
            {.pattern = kFluxName, .shape = "a bank's name"}),
      field("constraints", &S::constraints, "properties of the nodes (--requires)",
            {.pattern = kFluxConstraint, .shape = "a property such as mi300a"}),
      field("nodes", &S::nodes, "nodes of a job; a job has whole nodes",
            {.min = 1, .max = kMaxRanks}),
      field("tasks_per_node", &S::tasks_per_node, "ranks on a node", {.min = 1, .max = 4096}),
      time_field<S>("walltime (--time-limit): a number with one unit, such as 90m or 12h"),
      warning_field<S>(),
      settle_time_field<S>(
          "the time in which a job may appear after the answer of flux batch was lost"),
      command_timeout_field<S>("the time limit of one Flux command"),
  });
  return keys;
}

void complete_flux(QueueSettings& settings, const SectionKeys& keys) {
  const auto& flux = settings.as<FluxSettings>();
  require_warning_before_end(flux, keys);
}

void one_flux_task(QueueSettings& settings) {
  auto& flux = settings.as<FluxSettings>();
  flux.nodes = flux.tasks_per_node = 1;
}

constexpr QueueManager kFlux{
    .name = "flux",
    .title = "Flux",
    .settings = settings_type<FluxSettings>,
    .keys = flux_keys,
    .complete = complete_flux,
    .shape = shape_of<FluxSettings>,
    .one_task = one_flux_task,
    .shorten = shorten_to<FluxSettings>,
    .image_and_modules = true,
    .plain_workdir = true,
    .poll_interval = std::chrono::seconds(60),
    .script_values =
        [](const ScriptRequest& request) {
          const auto& flux = request.settings.as<FluxSettings>();
          return rank_script_values(request, flux_options(flux, request.job_name, request.folder),
                                    flux.time, flux.warning);
        },
    .make =
        [](const QueueSettings& settings, std::shared_ptr<remote::Session> session, Clock& clock) {
          return make_flux_scheduler(settings.as<FluxSettings>(), std::move(session), clock);
        },
    .program = "flux",
    .caution = "Flux was written from its documented formats and has not run on a real site",
};

}  // namespace

const QueueManager& flux_queue_manager() { return kFlux; }

std::vector<std::string> flux_options(const FluxSettings& settings, const std::string& job_name,
                                      const RemotePath& folder) {
  if (settings.nodes < 1 || settings.tasks_per_node < 1 || settings.time.count() < 1)
    throw Error(ErrorKind::kConfig, "a job needs nodes, tasks per node and a walltime");
  std::vector<std::string> options;
  const auto add = [&](const std::string& flag, const std::string& key, const std::string& value) {
    check_directive_word("flux." + key, value);
    options.push_back("--" + flag + "=" + value);
  };
  add("job-name", "job name", job_name);
  add("cwd", "work folder", folder.str());
  options.push_back("--output=" + folder.str() + "/" + std::string(kJobOutput));
  if (!settings.queue.empty()) add("queue", "queue", settings.queue);
  if (!settings.bank.empty()) add("bank", "bank", settings.bank);
  for (const std::string& constraint : settings.constraints)
    add("requires", "constraints", constraint);
  options.push_back("--nodes=" + std::to_string(settings.nodes));
  options.emplace_back("--exclusive");
  options.push_back("--time-limit=" + std::to_string(settings.time.count()) + "s");
  return options;
}

std::shared_ptr<Scheduler> make_flux_scheduler(FluxSettings settings,
                                               std::shared_ptr<remote::Session> session,
                                               Clock& clock) {
  const CommandTimes times{settings.settle_time, settings.command_timeout};
  return make_command_scheduler(std::make_unique<FluxCommands>(std::move(settings)), times,
                                std::move(session), clock);
}

}  // namespace xffl::submit
