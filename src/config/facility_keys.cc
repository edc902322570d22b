#include "bindings.h"
#include "xffl/job/sbatch_option.h"

namespace xffl::config {
namespace {

constexpr double kSecond = 1000, kHour = 3600 * kSecond, kDay = 24 * kHour;
constexpr double kMaxRanks = 1e6;
// One word of a directive each: no blanks, quotes, '#' or anything that a shell would expand.
constexpr std::string_view kSlurmName = "[A-Za-z0-9][A-Za-z0-9_.@+-]{0,127}";
constexpr std::string_view kSlurmNames = "[A-Za-z0-9][A-Za-z0-9_.@+,-]{0,255}";
constexpr std::string_view kConstraint = "[A-Za-z0-9(\\[][A-Za-z0-9_.@+,:&|*()\\[\\]=-]{0,255}";
constexpr std::string_view kUserName = "[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,127}";
constexpr std::string_view kHostPattern =
    "([A-Za-z0-9][A-Za-z0-9.-]{0,252}|\\[[0-9A-Fa-f:.]{2,45}\\])(:[1-9][0-9]{0,4})?";
constexpr std::string_view kModule = "[A-Za-z0-9_][A-Za-z0-9_.+/@:=~-]{0,255}";
constexpr std::string_view kProgram = "[A-Za-z0-9_/][A-Za-z0-9_./+-]{0,1023}";
constexpr std::string_view kBind = "/[^:,]{0,1023}(:/[^:,]{0,1023}(:(ro|rw))?)?";
constexpr std::string_view kCommandText = "[!-~]([ -~]{0,198}[!-~])?";
constexpr std::string_view kOption = "--[a-z0-9][a-z0-9-]{0,63}(=.{1,190})?";

Key text(std::string_view name, std::string_view help, Binding binding, std::string_view pattern,
         std::string_view shape) {
  return {.name = name,
          .type = Type::kText,
          .help = help,
          .binding = binding,
          .pattern = pattern,
          .shape = shape};
}

Key texts(std::string_view name, std::string_view help, Binding binding, std::string_view pattern,
          std::string_view shape, std::string (*refuse)(std::string_view) = nullptr) {
  Key key = text(name, help, binding, pattern, shape);
  key.type = Type::kTexts;
  key.refuse = refuse;
  return key;
}

std::string refuse_host(std::string_view text) {
  return parse_host(text) ? "" : "should have a port from 1 to 65535";
}

Key hosts(std::string_view name, std::string_view help, Binding binding) {
  return texts(name, help, binding, kHostPattern, "a host such as login.example.org or gate:2222",
               refuse_host);
}

Key boolean(std::string_view name, std::string_view help, Binding binding) {
  return {.name = name, .type = Type::kBoolean, .help = help, .binding = binding};
}

Key duration(std::string_view name, std::string_view help, Binding binding, double min, double max,
             int64_t multiple = 1) {
  return {.name = name,
          .type = Type::kDuration,
          .help = help,
          .binding = binding,
          .min = min,
          .max = max,
          .multiple = multiple};
}

const Section& ssh_keys() {
  static const Section keys = section<Ssh>({
      hosts("hosts", "equivalent log-in nodes, tried in order", bind<&Ssh::hosts>()),
      text("user", "the account's name there", bind<&Ssh::user>(), kUserName, "a user's name"),
      {.name = "keys",
       .type = Type::kHostPaths,
       .help = "private keys; KEY-cert.pub beside one is its certificate; none: the agent, then "
               "~/.ssh/id_*",
       .binding = bind<&Ssh::keys>()},
      hosts("jump", "hosts to go through, the first one first", bind<&Ssh::jump>()),
      boolean("agent", "also ask the agent at SSH_AUTH_SOCK", bind<&Ssh::agent>()),
      {"streams", Type::kInteger, "channels or requests in flight of one transfer",
       bind<&Ssh::streams>(), 1, 64},
      text("renew", "the command that renews the certificate, for messages; xffl never runs it",
           bind<&Ssh::renew>(), kCommandText, "a command of up to 200 printable characters"),
  });
  return keys;
}

const Section& transfer_keys() {
  static const Section keys = section<Transfer>({
      hosts("hosts", "hosts that move data; none: the log-in nodes", bind<&Transfer::hosts>()),
      text("user", "the account's name there; not given: ssh.user", bind<&Transfer::user>(),
           kUserName, "a user's name"),
      boolean("shell", "false: these hosts speak SFTP only", bind<&Transfer::shell>()),
      choice<PackModels>(
          "pack",
          "global models as differences from the last one, which the trainer unpacks; "
          "auto: where the link is slow and no trainer.command given",
          bind<&Transfer::pack>()),
  });
  return keys;
}

const Section& slurm_keys() {
  static const Section keys = section<Slurm>({
      text("account", "whose budget pays", bind<&Slurm::account>(), kSlurmName, "a Slurm account"),
      text("partition", "one, or several with commas", bind<&Slurm::partition>(), kSlurmNames,
           "a partition's name"),
      text("qos", "quality of service", bind<&Slurm::qos>(), kSlurmName, "the name of a QOS"),
      text("constraint", "features of nodes, as of --constraint", bind<&Slurm::constraint>(),
           kConstraint, "node features such as a100&nvlink"),
      text("reservation", "a reservation's name", bind<&Slurm::reservation>(), kSlurmNames,
           "a reservation's name"),
      {"nodes", Type::kInteger, "of a job", bind<&Slurm::nodes>(), 1, kMaxRanks},
      {"gpus_per_node", Type::kInteger, "0: none asked for", bind<&Slurm::gpus_per_node>(), 0, 64},
      text("gpu_type", "where the site wants it named", bind<&Slurm::gpu_type>(), kSlurmName,
           "a type of GPU such as a100"),
      choice<GpuOption>("gpu_option", "the option of sbatch that asks for GPUs",
                        bind<&Slurm::gpu_option>()),
      {.name = "tasks_per_node",
       .type = Type::kInteger,
       .help = "ranks on a node",
       .binding = bind<&Slurm::tasks_per_node>(),
       .min = 1,
       .max = 4096,
       .fallback = "one per GPU; 1 without"},
      {"cpus_per_task", Type::kInteger, "cores of a rank; 0: the site's default",
       bind<&Slurm::cpus_per_task>(), 0, 4096},
      {.name = "memory_per_node",
       .type = Type::kSize,
       .help = "0B: the site's default",
       .binding = bind<&Slurm::memory_per_node>(),
       .max = 1e15},
      boolean("exclusive", "nodes are not shared with other jobs", bind<&Slurm::exclusive>()),
      duration("time", "walltime", bind<&Slurm::time>(), 60 * kSecond, 365 * kDay, 1000),
      duration("warning", "so long before the walltime the trainer is told to stop and save",
               bind<&Slurm::warning>(), 0, 18 * kHour, 1000),
      text("cluster", "of a site with several; not given: the local one", bind<&Slurm::cluster>(),
           kSlurmName, "a cluster's name"),
      texts("extra", "further options of sbatch", bind<&Slurm::extra>(), kOption,
            "an option such as --mail-type=END", job::refuse_sbatch_option),
      texts("srun", "further options of srun", bind<&Slurm::srun>(), kOption,
            "an option such as --cpu-bind=cores", job::refuse_srun_option),
      duration("settle_time", "a job may appear so long after the answer to sbatch was lost",
               bind<&Slurm::settle_time>(), 0, kHour),
      duration("command_timeout", "of one Slurm command", bind<&Slurm::command_timeout>(), kSecond,
               kHour),
      duration("keep_allocation",
               "a job that has reported keeps its nodes so long for the next round; 0s: it ends",
               bind<&Slurm::keep_allocation>(), 0, 7 * kDay, 1000),
  });
  return keys;
}

const Section& image_keys() {
  static const Section keys = section<Image>({
      {.name = "file",
       .type = Type::kSitePath,
       .help = "Apptainer or Singularity image at the facility that the trainer runs in",
       .binding = bind<&Image::file>(),
       .fallback = "no image"},
      text("program", "apptainer, singularity or a path", bind<&Image::program>(), kProgram,
           "a program's name or path"),
      texts("binds", "beside the folders of the job and its data: /path[:/inside[:ro]]",
            bind<&Image::binds>(), kBind, "a bind such as /scratch/me:/data:ro"),
      texts("options", "further words of `apptainer exec`", bind<&Image::options>(), {}, {}),
      choice<ImageGpu>("gpu", "which GPUs the image sees", bind<&Image::gpu>()),
  });
  return keys;
}

const Section& data_keys() {
  static const Section keys = section<Facility>({
      {.name = "train",
       .type = Type::kSitePaths,
       .help = "token shards to train on, one or a list",
       .binding = bind<&Facility::train_data>(),
       .required = true},
      {.name = "validation",
       .type = Type::kValidationSets,
       .help = "token shards measured before and after each training, by name",
       .binding = bind<&Facility::validation>()},
  });
  return keys;
}

bool is_ssh(const void* facility) {
  return static_cast<const Facility*>(facility)->access == AccessKind::kSsh;
}

bool is_slurm(const void* facility) {
  return static_cast<const Facility*>(facility)->scheduler == SchedulerKind::kSlurm;
}

/// The way to the facility, and what its batch system is asked for.
std::vector<Key> reach_keys() {
  return {
      choice<AccessKind>("access", "how files and commands reach the facility",
                         bind<&Facility::access>()),
      choice<SchedulerKind>("scheduler", "what starts its jobs", bind<&Facility::scheduler>()),
      {.name = "ssh",
       .type = Type::kSection,
       .help = "how it is reached",
       .binding = inner<&Facility::ssh>(),
       .section = &ssh_keys(),
       .applies = is_ssh,
       .condition = "access: ssh",
       .operational = true},
      {.name = "transfer",
       .type = Type::kSection,
       .help = "another way for files, with the keys, jump hosts and streams of ssh",
       .binding = inner<&Facility::transfer>(),
       .section = &transfer_keys(),
       .applies = is_ssh,
       .condition = "access: ssh",
       .given =
           [](const void* object) {
             const Transfer& transfer = static_cast<const Facility*>(object)->transfer;
             return !transfer.hosts.empty() || transfer.pack != PackModels::kAuto;
           },
       .operational = true},
      {.name = "slurm",
       .type = Type::kSection,
       .help = "what its jobs ask for",
       .binding = inner<&Facility::slurm>(),
       .section = &slurm_keys(),
       .applies = is_slurm,
       .condition = "scheduler: slurm",
       .operational = true},
  };
}

/// What a job runs, and where.
std::vector<Key> program_keys() {
  return {
      {.name = "workdir",
       .type = Type::kSitePath,
       .help = "folder at the facility under which xffl's files live",
       .binding = bind<&Facility::workdir>(),
       .fallback = "work/<facility>; required with access: ssh"},
      operational(duration("purge_after",
                           "the site removes files under workdir that were not used for so long; "
                           "0s: never, or not known",
                           bind<&Facility::purge_after>(), 0, 3650 * kDay, 1000)),
      {.name = "template",
       .type = Type::kHostPath,
       .help = "your own job script template",
       .binding = bind<&Facility::template_file>(),
       .fallback = "the shipped one of the scheduler",
       .operational = true},
      {.name = "world_size",
       .type = Type::kInteger,
       .help = "ranks of a job",
       .binding = bind<&Facility::world_size>(),
       .min = 1,
       .max = kMaxRanks,
       .fallback = "1; with scheduler: slurm nodes * tasks_per_node"},
      {.name = "trainer",
       .type = Type::kTrainer,
       .help = "builtin; {program: PATH}: xffl-train at another place; {command: [WORD, ...]}: "
               "any program that honours job.json, '--job FILE' is appended",
       .fallback = "builtin"},
  };
}

/// What a job runs in.
std::vector<Key> shell_keys() {
  return {
      {.name = "image",
       .type = Type::kSection,
       .help = "a container for the trainer",
       .binding = inner<&Facility::image>(),
       .section = &image_keys(),
       .applies = is_slurm,
       .condition = "scheduler: slurm",
       .given =
           [](const void* object) {
             return !static_cast<const Facility*>(object)->image.file.empty();
           },
       .operational = true},
      {.name = "modules",
       .type = Type::kTexts,
       .help = "environment modules, loaded before the lines of environment",
       .binding = bind<&Facility::modules>(),
       .pattern = kModule,
       .shape = "a module such as cuda/12.2",
       .applies = is_slurm,
       .condition = "scheduler: slurm",
       .operational = true},
      {.name = "environment",
       .type = Type::kEnvironment,
       .help = "before the trainer starts: a list of shell lines, or a mapping NAME: value",
       .binding = bind<&Facility::environment>(),
       .operational = true},
      {.name = "poll_interval",
       .type = Type::kDuration,
       .help = "between two looks at its jobs; 0s: policy.poll_interval",
       .binding = bind<&Facility::poll_interval>(),
       .max = kHour,
       .fallback = "policy.poll_interval; 60s with scheduler: slurm when neither is given",
       .operational = true},
  };
}

/// What it trains on.
std::vector<Key> work_keys() {
  return {
      {.name = "training",
       .type = Type::kSection,
       .help = "what differs here from the training of all",
       .binding = inner<&Facility::training>(),
       .section = &training_keys()},
      {.name = "data",
       .type = Type::kSection,
       .help = "token shards at the facility",
       .binding = same_object(),
       .required = true,
       .section = &data_keys()},
  };
}

}  // namespace

const Section& facility_keys() {
  static const Section keys = [] {
    std::vector<Key> all;
    for (std::vector<Key> part : {reach_keys(), program_keys(), shell_keys(), work_keys()})
      for (Key& key : part) all.push_back(std::move(key));
    return section<Facility>(std::move(all));
  }();
  return keys;
}

}  // namespace xffl::config
