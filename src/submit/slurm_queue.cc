// Slurm's row of queue_managers(): its keys in xffl.yaml, their checks, and its job scripts.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "queue_shape.h"
#include "xffl/job/fields.h"
#include "xffl/submit/queue_manager.h"
#include "xffl/submit/scheduler.h"
#include "xffl/submit/slurm.h"
#include "xffl/submit/template.h"

namespace xffl::submit {
namespace {

// Each pattern is one word of a directive: no blanks, quotes, '#' or text that a shell would
// expand.
constexpr std::string_view kSlurmName = "[A-Za-z0-9][A-Za-z0-9_.@+-]{0,127}";
constexpr std::string_view kSlurmNames = "[A-Za-z0-9][A-Za-z0-9_.@+,-]{0,255}";
constexpr std::string_view kConstraint = "[A-Za-z0-9(\\[][A-Za-z0-9_.@+,:&|*()\\[\\]=-]{0,255}";
constexpr std::string_view kOption = "--[a-z0-9][a-z0-9-]{0,63}(=.{1,190})?";

const job::FieldTable& slurm_keys() {
  using S = SlurmSettings;
  using job::field;
  static const job::FieldTable keys({
      field("account", &S::account, "the account that pays for the jobs (--account)",
            {.pattern = kSlurmName, .shape = "a Slurm account"}),
      field("partition", &S::partition, "one partition, or several with commas",
            {.pattern = kSlurmNames, .shape = "a partition's name"}),
      field("qos", &S::qos, "quality of service",
            {.pattern = kSlurmName, .shape = "the name of a QOS"}),
      field("check_partition", &S::check_partition,
            "the partition of `xffl doctor --job`, such as a debug partition; not set: partition",
            {.pattern = kSlurmNames, .shape = "a partition's name"}),
      field("check_qos", &S::check_qos,
            "the quality of service of `xffl doctor --job`; not set: qos",
            {.pattern = kSlurmName, .shape = "the name of a QOS"}),
      field("cpu_partition", &S::cpu_partition,
            "a partition for work without GPUs, in which the job of `xffl deploy` (deploy.unpack) "
            "requests none; not set: as its other jobs",
            {.pattern = kSlurmNames, .shape = "a partition's name", .omit_default = true}),
      field("cpu_qos", &S::cpu_qos,
            "the quality of service for work without GPUs; not set: with cpu_partition the site's "
            "default",
            {.pattern = kSlurmName, .shape = "the name of a QOS", .omit_default = true}),
      field("constraint", &S::constraint, "features of nodes, as of --constraint",
            {.pattern = kConstraint, .shape = "node features such as a100&nvlink"}),
      field("reservation", &S::reservation, "a reservation's name",
            {.pattern = kSlurmNames, .shape = "a reservation's name"}),
      field("nodes", &S::nodes, "nodes of a job", {.min = 1, .max = kMaxRanks}),
      field("gpus_per_node", &S::gpus_per_node, "GPUs of a node; 0: no option", {.max = 64}),
      field("gpu_type", &S::gpu_type, "the type of GPU, for sites that require one",
            {.pattern = kSlurmName, .shape = "a type of GPU such as a100"}),
      field("gpu_option", &S::gpu_option, "the option of sbatch that requests GPUs"),
      field("visible_gpus", &S::visible_gpus,
            "the GPUs of its node that a rank sees; site: as srun shows them; one: its own, by "
            "CUDA_VISIBLE_DEVICES or ROCR_VISIBLE_DEVICES; all: srun binds none",
            {.omit_default = true}),
      field("tasks_per_node", &S::tasks_per_node, "ranks on a node",
            {.min = 1, .max = 4096, .default_text = "one per GPU; 1 without"}),
      field("cpus_per_task", &S::cpus_per_task, "cores of a rank; 0: the site's default",
            {.max = 4096}),
      field("memory_per_node", &S::memory_per_node,
            "memory of a node (--mem); 0B: the site's default",
            {.type = job::Type::kSize, .max = 1e15}),
      field("exclusive", &S::exclusive, "true: no other job shares the nodes"),
      time_field<S>("walltime: a number with one unit, such as 90m or 12h; not 12:00:00"),
      warning_field<S>(),
      field("cluster", &S::cluster, "the cluster of a site with several; not set: the local one",
            {.pattern = kSlurmName, .shape = "a cluster's name"}),
      field("extra", &S::extra, "further options of sbatch",
            {.pattern = kOption,
             .shape = "an option such as --mail-type=END",
             .validate = validate_sbatch_option}),
      field("srun", &S::srun, "further options of srun",
            {.pattern = kOption,
             .shape = "an option such as --cpu-bind=cores",
             .validate = validate_srun_option}),
      settle_time_field<S>("the time in which a job may appear after sbatch's answer was lost"),
      command_timeout_field<S>("the time limit of one Slurm command"),
      field("keep_allocation", &S::keep_allocation,
            "the time for which a job that has reported keeps its nodes for the next round; 0s: it "
            "ends",
            {.max = 7 * kDay}),
  });
  return keys;
}

void complete_slurm(QueueSettings& settings, const SectionKeys& keys) {
  SlurmSettings& slurm = settings.as<SlurmSettings>();
  if (!keys.is_set("tasks_per_node")) slurm.tasks_per_node = std::max(1, slurm.gpus_per_node);
  require_warning_before_end(slurm, keys);
}

JobShape slurm_shape(const QueueSettings& settings, int /*world_size*/) {
  const SlurmSettings& slurm = settings.as<SlurmSettings>();
  return {.nodes = slurm.nodes,
          .tasks_per_node = slurm.tasks_per_node,
          .walltime = slurm.time,
          .warning = slurm.warning,
          .keep_allocation = slurm.keep_allocation,
          .gpus_per_node = slurm.gpus_per_node};
}

void one_slurm_task(QueueSettings& settings) {
  SlurmSettings& slurm = settings.as<SlurmSettings>();
  slurm.cpus_per_task = slurm.cpus_per_task * slurm.tasks_per_node;
  slurm.nodes = slurm.tasks_per_node = 1;
  slurm.keep_allocation = std::chrono::seconds(0);
}

void shorten_slurm(QueueSettings& settings, int nodes, std::chrono::seconds walltime) {
  SlurmSettings& slurm = settings.as<SlurmSettings>();
  if (!slurm.check_partition.empty()) slurm.partition = slurm.check_partition;
  if (!slurm.check_qos.empty()) slurm.qos = slurm.check_qos;
  shorten_to<SlurmSettings>(settings, nodes, walltime);
  slurm.keep_allocation = std::chrono::seconds(0);
}

// Other requests than an account may not fit the other queue: it gives its default cores and
// memory.
void use_slurm_cpu_queue(QueueSettings& settings) {
  SlurmSettings& slurm = settings.as<SlurmSettings>();
  if (slurm.cpu_partition.empty() && slurm.cpu_qos.empty()) return;
  if (!slurm.cpu_partition.empty()) slurm.partition = slurm.cpu_partition;
  slurm.qos = slurm.cpu_qos;
  slurm.gpus_per_node = 0;
  slurm.gpu_type = slurm.constraint = slurm.reservation = "";
  slurm.cpus_per_task = 0;
  slurm.memory_per_node = 0;
  slurm.exclusive = false;
}

// Starts a rank ("$@") that sees one GPU of its node: the entry of the job's list at the rank's
// place on the node, or the GPU of that number without a list. The other GPUs stay in the job's
// cgroup, which peer-to-peer copies need (srun's --gpus-per-task would remove them). HIP reads
// CUDA_VISIBLE_DEVICES as a further selection among those of ROCR_VISIBLE_DEVICES.
constexpr const char* kWithOwnGpu =
    R"sh(if [ -e /dev/kfd ]; then all=${ROCR_VISIBLE_DEVICES-}; else all=${CUDA_VISIBLE_DEVICES-}; fi; )sh"
    R"sh(place=${SLURM_LOCALID:-0}; own=$all; )sh"
    R"sh(while [ "$place" -gt 0 ]; do own=${own#*,}; place=$((place - 1)); done; )sh"
    R"sh(own=${own%%,*}; own=${own:-${SLURM_LOCALID:-0}}; )sh"
    R"sh(if [ -e /dev/kfd ]; then unset CUDA_VISIBLE_DEVICES HIP_VISIBLE_DEVICES; )sh"
    R"sh(export ROCR_VISIBLE_DEVICES="$own"; else export CUDA_VISIBLE_DEVICES="$own"; fi; exec "$@")sh";

// One task per rank. srun takes the job's shape from its environment, except for --cpus-per-task.
std::vector<std::string> slurm_launch(const ScriptRequest& request) {
  const SlurmSettings& slurm = request.settings.as<SlurmSettings>();
  std::vector<std::string> argv = {"srun",
                                   "--export=ALL",
                                   "--kill-on-bad-exit=1",
                                   "--nodes=" + std::to_string(slurm.nodes),
                                   "--ntasks=" + std::to_string(request.world_size),
                                   "--ntasks-per-node=" + std::to_string(slurm.tasks_per_node)};
  if (slurm.cpus_per_task > 0)
    argv.push_back("--cpus-per-task=" + std::to_string(slurm.cpus_per_task));
  if (slurm.visible_gpus == VisibleGpus::kAll) argv.emplace_back("--gpu-bind=none");
  std::vector<std::string> own_gpu;
  if (slurm.visible_gpus == VisibleGpus::kOne) own_gpu = {"sh", "-c", kWithOwnGpu, "sh"};
  for (const std::vector<std::string>* words :
       {&slurm.srun, &std::as_const(own_gpu), &request.image, &request.trainer})
    argv.insert(argv.end(), words->begin(), words->end());
  return argv;
}

ScriptValues slurm_values(const ScriptRequest& request) {
  const SlurmSettings& slurm = request.settings.as<SlurmSettings>();
  const auto& next = request.next_folder;
  return {.values = {{"options",
                      slurm_options(slurm, request.job_name, request.folder, request.may_requeue)},
                     {"modules", request.modules},
                     {"launch", slurm_launch(request)},
                     {"next_folder", next ? next->str() : ""},
                     {"keep_seconds", std::to_string(next ? slurm.keep_allocation.count() : 0)},
                     {"warning_seconds", std::to_string(slurm.warning.count())}},
          .optional = {"modules", "next_folder", "keep_seconds", "warning_seconds"}};
}

constexpr QueueManager kSlurm{
    .name = "slurm",
    .title = "Slurm",
    .settings = settings_type<SlurmSettings>,
    .keys = slurm_keys,
    .complete = complete_slurm,
    .shape = slurm_shape,
    .one_task = one_slurm_task,
    .shorten = shorten_slurm,
    .use_cpu_queue = use_slurm_cpu_queue,
    .image_and_modules = true,
    .plain_workdir = true,
    .poll_interval = std::chrono::seconds(60),  // the shortest interval that sites accept
    .script_values = slurm_values,
    .make =
        [](const QueueSettings& settings, std::shared_ptr<remote::Session> session, Clock& clock) {
          return make_slurm_scheduler(settings.as<SlurmSettings>(), std::move(session), clock);
        },
    .program = "sbatch",
    .submit_by_hand = "sbatch",
    .check =
        [](remote::Session& session, const QueueSettings& settings, const JobRequest& request,
           std::stop_token stop) {
          return test_only(session, settings.as<SlurmSettings>(), request, std::move(stop));
        },
    .longest_walltime =
        [](remote::Session& session, const QueueSettings& settings) {
          return longest_walltime(session, settings.as<SlurmSettings>());
        },
    .accounted_starts =
        [](remote::Session& session, const QueueSettings& settings,
           std::span<const SubmittedJob> jobs, std::stop_token stop) {
          return accounted_starts(session, settings.as<SlurmSettings>(), jobs, std::move(stop));
        },
};

}  // namespace

const QueueManager& slurm_queue_manager() { return kSlurm; }

}  // namespace xffl::submit
