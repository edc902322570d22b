#include "keys.h"

#include <memory>

#include "scalars.h"
#include "xffl/base/error.h"

namespace xffl::config {
namespace {

using job::field;

constexpr double kSecond = 1000, kHour = 3600 * kSecond, kDay = 24 * kHour;
constexpr std::string_view kUserName = "[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,127}";
constexpr std::string_view kHostPattern =
    "([A-Za-z0-9][A-Za-z0-9.-]{0,252}|\\[[0-9A-Fa-f:.]{2,45}\\])(:[1-9][0-9]{0,4})?";
constexpr std::string_view kModule = "[A-Za-z0-9_][A-Za-z0-9_.+/@:=~-]{0,255}";
constexpr std::string_view kProgram = "[A-Za-z0-9_/][A-Za-z0-9_./+-]{0,1023}";
constexpr std::string_view kBind = "/[^:,]{0,1023}(:/[^:,]{0,1023}(:(ro|rw))?)?";
constexpr std::string_view kMount = "(/[A-Za-z0-9._+@=-]+)+(:(/[A-Za-z0-9._+@=-]+)+)?";
constexpr std::string_view kCommandText = "[!-~]([ -~]{0,198}[!-~])?";

std::string validate_host(std::string_view text) {
  return parse_host(text) ? "" : "should have a port from 1 to 65535";
}

/// A list of at least `min` hosts, each as text in the file.
template <class Object>
Field hosts(std::string_view name, std::vector<remote::SshHost> Object::*member,
            std::string_view help, double min = 0) {
  Field key{.name = name,
            .help = help,
            .type = Type::kTexts,
            .min = min,
            .pattern = kHostPattern,
            .shape = "a host such as login.example.org or gate:2222",
            .validate = validate_host};
  key.get = [member](const void* object) -> Value {
    std::vector<std::string> texts;
    for (const remote::SshHost& host : static_cast<const Object*>(object)->*member)
      texts.push_back(format_host(host));
    return texts;
  };
  key.set = [member](void* object, const Value& value) {
    auto& all = static_cast<Object*>(object)->*member;
    all.clear();
    for (const std::string& text : std::get<std::vector<std::string>>(value))
      if (const auto host = parse_host(text)) all.push_back(*host);
  };
  return key;
}

const FieldTable& ssh_keys() {
  using S = remote::SshSettings;
  static const FieldTable keys({
      hosts("hosts", &S::hosts, "equivalent login nodes, tried in order", 1),
      field("user", &S::user, "the account's name there",
            {.pattern = kUserName, .shape = "a user's name"}),
      field("keys", &S::keys,
            "private keys; KEY-cert.pub beside one is its certificate; none: the agent, then "
            "~/.ssh/id_*"),
      hosts("jump", &S::jump, "ProxyJump hosts, in order"),
      field("agent", &S::agent, "also use the agent of SSH_AUTH_SOCK"),
      field("streams", &S::streams, "channels or requests in flight of one transfer",
            {.min = 1, .max = 64}),
      field("renew", &S::renew,
            "the command that renews the certificate, for messages; xffl never runs it",
            {.pattern = kCommandText, .shape = "a command of up to 200 printable characters"}),
  });
  return keys;
}

const FieldTable& transfer_keys() {
  static const FieldTable keys({
      hosts("hosts", &Transfer::hosts, "hosts that transfer data; none: the login nodes"),
      field("user", &Transfer::user, "the account's name there; not set: ssh.user",
            {.pattern = kUserName, .shape = "a user's name"}),
      field("shell", &Transfer::shell, "false: these hosts speak SFTP only"),
      field("pack", &Transfer::pack,
            "global models as differences from the last one, which the trainer unpacks; auto: "
            "where the link is slow and trainer.command is not set"),
  });
  return keys;
}

const FieldTable& image_keys() {
  static const FieldTable keys({
      field("file", &Image::file,
            "the Apptainer or Singularity image, at the facility, in which the trainer runs",
            {.type = Type::kSitePath, .default_text = "no image"}),
      field("program", &Image::program, "apptainer, singularity or a path",
            {.pattern = kProgram, .shape = "a program's name or path"}),
      field("binds", &Image::binds,
            "folders to bind, beside those of the job and its data: "
            "/path[:/inside[:ro]]",
            {.pattern = kBind, .shape = "a bind such as /scratch/me:/data:ro"}),
      field("options", &Image::options, "further arguments of `apptainer exec`"),
      field("gpu", &Image::gpu, "the GPUs that the image sees"),
  });
  return keys;
}

const FieldTable& deploy_keys() {
  static const FieldTable keys({
      field("unpack", &Deployment::unpack,
            "the place where it hashes and unpacks what it has sent, and starts the programs: the "
            "log-in node, or a short job for sites that forbid this on log-in nodes"),
  });
  return keys;
}

bool has_text(const void* facility) {
  return !static_cast<const Facility*>(facility)->text.files.empty();
}

template <DataFormat format>
bool has_format(const void* facility) {
  return has_text(facility) && static_cast<const Facility*>(facility)->text.format == format;
}

// A key of `data` whose member is in Facility::text; it has a meaning with text only.
template <class Member>
Field text_key(std::string_view name, Member TextData::*member, std::string_view help,
               Field more = {}) {
  const bool is_first = name == "text";
  Field key = field(name, member, help, std::move(more));
  key.get = [get = key.get](const void* facility) {
    return get(&static_cast<const Facility*>(facility)->text);
  };
  key.set = [set = key.set](void* facility, const Value& value) {
    set(&static_cast<Facility*>(facility)->text, value);
  };
  if (key.is_set)
    key.is_set = [is_set = key.is_set](const void* facility) {
      return is_set(&static_cast<const Facility*>(facility)->text);
    };
  if (!is_first && !key.applies) {
    key.applies = has_text;
    key.condition = "data.text";
  }
  return key;
}

const FieldTable& data_keys() {
  static const FieldTable keys({
      text_key("text", &TextData::files,
               "text at the facility, paths and patterns such as /data/it/*.jsonl, which `xffl "
               "prepare` makes into token shards there",
               {.type = Type::kSitePaths, .omit_default = true}),
      field("train", &Facility::train_data, "token shards to train on, one or a list",
            {.type = Type::kSitePaths,
             .default_text = "required without text",
             .applies = [](const void* facility) { return !has_text(facility); },
             .condition = "shards of your own, without data.text"}),
      field("sequence_length", &Facility::sequence_length,
            "the most tokens of a sequence, which bounds the tokens in the facility's reports; 0: "
            "the shards' own figure; with text: 2048, or the model's max_position_embeddings if "
            "that is less",
            {.max = 1 << 24, .omit_default = true, .operational = true}),
      field("validation", &Facility::validation,
            "token shards measured before and after a round's training, by name; with text the "
            "facility's own set, named as the facility, is added",
            {.type = Type::kValidationSets}),
      text_key("format", &TextData::format,
               "the format of the text's files; auto: by the name, jsonl, parquet, arrow or text; "
               "ids, bin: token ids of the model's tokenizer, also in tables"),
      text_key("template", &TextData::prompt,
               "the prompt around each document, such as 'Scrivi: {text}'"),
      text_key("document", &TextData::document, "the unit of a text file that makes a document"),
      text_key("text_field", &TextData::text_field,
               "JSONL and tables: the field or column with a document's text"),
      text_key("prompt_field", &TextData::prompt_field,
               "JSONL and tables: the field with a document's prompt, {prompt} in the template"),
      text_key("chat_template", &TextData::chat_template,
               "the template of the model's conversations, such as llama-3",
               {.applies = has_format<DataFormat::kChat>, .condition = "format: chat"}),
      text_key("messages_field", &TextData::messages_field,
               "the field or column with the messages of a conversation",
               {.applies = has_format<DataFormat::kChat>, .condition = "format: chat"}),
      text_key("id_type", &TextData::id_type, "the type of a raw id",
               {.applies = has_format<DataFormat::kBin>, .condition = "format: bin"}),
      text_key("end_id", &TextData::end_id,
               "the raw id that ends a document and belongs to it; -1: none, every "
               "sequence_length ids are a document",
               {.min = -1,
                .max = INT32_MAX,
                .applies = has_format<DataFormat::kBin>,
                .condition = "format: bin"}),
      text_key("mask_prompt", &TextData::mask_prompt, "true: no loss on the text before {text}"),
      text_key("pack", &TextData::pack,
               "documents end to end in full sequences; false: each document is a sequence"),
      text_key("validation_fraction", &TextData::validation_fraction,
               "the share of the documents set aside for validation; 0: none", {.max = 0.5}),
  });
  return keys;
}

// The settings of an optimizer; the table's object is Aggregation::optimizer_settings.
FieldTable optimizer_setting_keys(const aggregate::ServerOptimizer& optimizer) {
  std::vector<Field> keys;
  for (size_t i = 0; i < optimizer.settings.size(); ++i) {
    const aggregate::ServerSetting& setting = optimizer.settings[i];
    Field key{.name = setting.name,
              .help = setting.help,
              .type = Type::kNumber,
              .min = setting.min,
              .max = setting.max,
              .below_max = setting.below_max};
    key.get = [i](const void* values) -> Value {
      return static_cast<const std::vector<double>*>(values)->at(i);
    };
    key.set = [i](void* values, const Value& value) {
      static_cast<std::vector<double>*>(values)->at(i) = std::get<double>(value);
    };
    key.default_value = setting.default_value;
    keys.push_back(std::move(key));
  }
  return {std::move(keys)};
}

// The section of an optimizer with settings, which has the optimizer's name.
Field optimizer_section(const aggregate::ServerOptimizer& optimizer) {
  struct Parts {
    FieldTable table;
    std::string condition;
  };
  const auto parts = std::make_shared<const Parts>(
      Parts{optimizer_setting_keys(optimizer), "server_optimizer: " + std::string(optimizer.name)});
  const auto applies = [name = optimizer.name](const void* aggregation) {
    return static_cast<const Aggregation*>(aggregation)->server_optimizer == name;
  };
  Field key{.name = optimizer.name,
            .help = "the settings of this server optimizer",
            .type = Type::kSection,
            .table = &parts->table,
            .applies = applies,
            .condition = parts->condition,
            .omit_default = true};
  key.inner = [parts](void* aggregation) -> void* {  // owns the table and the condition
    return &static_cast<Aggregation*>(aggregation)->optimizer_settings;
  };
  key.is_set = [defaults = optimizer.defaults()](const void* aggregation) {
    return static_cast<const Aggregation*>(aggregation)->optimizer_settings != defaults;
  };
  return key;
}

// A change of the optimizer also sets the new optimizer's default settings.
Field optimizer_key(std::span<const aggregate::ServerOptimizer> optimizers) {
  const auto help = std::make_shared<std::string>("the rule from the mean to the next master");
  Field key = field("server_optimizer", &Aggregation::server_optimizer, {},
                    {.type = Type::kChoice, .omit_default = true});
  for (const aggregate::ServerOptimizer& each : optimizers) {
    help->append("; ").append(each.name).append(" ").append(each.help);
    key.choices.push_back(each.name);
  }
  key.help = *help;
  key.set = [help, optimizers](void* object, const Value& value) {  // owns the help text
    auto& aggregation = *static_cast<Aggregation*>(object);
    aggregation.server_optimizer = std::get<std::string>(value);
    for (const aggregate::ServerOptimizer& each : optimizers)
      if (each.name == aggregation.server_optimizer)
        aggregation.optimizer_settings = each.defaults();
  };
  return key;
}

const FieldTable& budget_keys() {
  static const FieldTable keys({
      field("node_hours", &Budget::node_hours,
            "the most node-hours of the jobs; a job whose whole walltime does not fit is not "
            "submitted: the facility is paused; 0: no limit",
            {.max = 1e12}),
      field("warn_at", &Budget::warn_at, "the share of node_hours from which on the log warns",
            {.max = 1}),
  });
  return keys;
}

const FieldTable& stop_keys() {
  using S = StopRules;
  static const FieldTable keys({
      field("no_better_for", &S::no_better_for,
            "the rounds without a lower mean validation loss after which the run completes; 0: no "
            "rule",
            {.max = 1e6}),
      field("loss_below", &S::loss_below,
            "the run completes below this mean validation loss, in nats; 0: no rule", {.max = 1e6}),
      field("gain_per_node_hour", &S::gain_per_node_hour,
            "the run completes when its last three measured rounds lowered the mean validation "
            "loss by fewer nats per node-hour; 0: no rule",
            {.max = 1e6}),
      field("wall_clock", &S::wall_clock,
            "the time from the run's creation after which it completes; 0s: no rule",
            {.max = 3650 * kDay}),
  });
  return keys;
}

const FieldTable& policy_keys() {
  using P = RoundPolicy;
  static const FieldTable keys({
      field("on_missing", &P::on_missing,
            "the reaction to a facility without an update: wait for it, skip it, or fail the run"),
      field("quorum", &P::quorum,
            "facilities that must take part; 0: all, or with on_missing: skip at least 1",
            {.max = 10'000}),
      field("quorum_grace", &P::quorum_grace,
            "with on_missing: skip and a quorum: the time from the quorum's last update to the end "
            "of the round, which continues without later updates; 0s: the round waits for all "
            "facilities, or for the deadline",
            {.max = 3650 * kDay}),
      field("deadline", &P::deadline,
            "the time limit of a round, from its first submission (of the evaluation of the last "
            "model: from its beginning); 0s: none, with on_missing: skip 7 days; on_missing "
            "decides the effect; with wait, the log has a warning",
            {.max = 3650 * kDay}),
      field("max_attempts", &P::max_attempts,
            "failed attempts of a facility in a round after which it is missing; rerun_budget "
            "counts lost jobs",
            {.min = 1, .max = 100}),
      field("poll_interval", &P::poll_interval, "the time between two polls of a facility's jobs",
            {.min = 10, .max = kHour}),
      field("keep_rounds", &P::keep_rounds, "rounds whose files stay at the facilities",
            {.min = 1, .max = 1e6}),
      field("keep_updates", &P::keep_updates,
            "newest rounds whose updates stay on the coordinator's disk; 0: all. With a limit, a "
            "damaged master of an older round cannot be made again",
            {.max = 1e6}),
      field("keep_models", &P::keep_models,
            "newest rounds whose global models stay on the coordinator's disk; 0: all. At least "
            "the last two and the initial model stay",
            {.max = 1e6}),
      field("max_outage", &P::max_outage,
            "the outage after which a facility is missing in the round",
            {.min = kSecond, .max = 3650 * kDay}),
      field("on_walltime", &P::on_walltime,
            "a job that stopped on the warning before its walltime: use its update, or resume from "
            "its "
            "checkpoint in another job"),
      field("rerun_budget", &P::rerun_budget,
            "further jobs of a facility in a round after node failures, preemption, the walltime, "
            "cancellations or a damaged input model; max_attempts does not count them",
            {.max = 1000}),
      field("evaluate_last", &P::evaluate_last,
            "after the last round, have facilities with validation sets measure the last global "
            "model, in one more job each"),
      field("max_change", &P::max_change,
            "an update is rejected if the L2 norm of its change exceeds this multiple of its input "
            "model's norm; 0: no limit",
            {.max = 1e12}),
      field("budget", &P::budget, "a limit on the node-hours of all facilities together",
            {.table = &budget_keys(), .omit_default = true}),
      field("stop_when", &P::stop_when,
            "rules that complete the run before its last round; compared after each round",
            {.table = &stop_keys(), .omit_default = true}),
  });
  return keys;
}

bool is_ssh(const void* facility) {
  return static_cast<const Facility*>(facility)->access == AccessKind::kSsh;
}

// The text that joins the names of the queue managers that have a property.
std::string managers_with(bool submit::QueueManager::*property, bool value = true) {
  std::vector<std::string_view> names;
  for (const submit::QueueManager* each : submit::queue_managers())
    if (each->*property == value) names.push_back(each->name);
  return job::alternatives(names);
}

// A change of the queue manager also sets the new queue manager's default settings.
Field scheduler_key() {
  Field key{.name = "scheduler", .help = "the queue manager of its jobs", .type = Type::kChoice};
  for (const submit::QueueManager* each : submit::queue_managers())
    key.choices.push_back(each->name);
  key.get = [](const void* object) -> Value {
    return std::string(static_cast<const Facility*>(object)->scheduler.manager().name);
  };
  key.set = [](void* object, const Value& value) {
    static_cast<Facility*>(object)->scheduler = submit::QueueSettings(std::get<std::string>(value));
  };
  key.default_value = std::string(submit::queue_managers().front()->name);
  return key;
}

// The section with a queue manager's settings, which has the queue manager's name.
Field queue_section(const submit::QueueManager& manager) {
  const auto condition =
      std::make_shared<const std::string>("scheduler: " + std::string(manager.name));
  Field key{.name = manager.name,
            .help = "the resources of its jobs",
            .type = Type::kSection,
            .table = &manager.keys(),
            .condition = *condition,
            .operational = true};
  key.applies = [&manager, condition](const void* facility) {  // owns the text
    return static_cast<const Facility*>(facility)->scheduler.is(manager);
  };
  key.inner = [](void* facility) { return static_cast<Facility*>(facility)->scheduler.object(); };
  return key;
}

bool has_image_and_modules(const void* facility) {
  return static_cast<const Facility*>(facility)->scheduler.manager().image_and_modules;
}

// The texts of facility_keys() that name queue managers.
struct QueueTexts {
  std::string with_image = "scheduler: " + managers_with(&submit::QueueManager::image_and_modules);
  std::string world_size =
      "1; with scheduler: " + managers_with(&submit::QueueManager::this_machine, false) +
      " nodes * tasks_per_node";
  std::string poll_interval = "policy.poll_interval";

  QueueTexts() {
    for (const submit::QueueManager* each : submit::queue_managers())
      if (each->poll_interval.count() > 0)
        poll_interval += "; " + std::to_string(each->poll_interval / std::chrono::seconds(1)) +
                         "s with scheduler: " + std::string(each->name);
    poll_interval += " when neither is set";
  }
};

// The keys of a facility's jobs.
std::vector<Field> job_keys(const QueueTexts& texts) {
  using F = Facility;
  return {
      field("workdir", &F::workdir, "folder at the facility under which xffl's files live",
            {.default_text = "work/<facility>; required with access: ssh"}),
      field("compute_mounts", &F::compute_mounts,
            "the folders of the log-in nodes that compute nodes mount, such as /e, or "
            "/p/scratch:/scratch where compute nodes have another path; not set: all, at the same "
            "paths",
            {.pattern = kMount,
             .shape = "a folder such as /e, or /p/scratch:/scratch",
             .applies = has_image_and_modules,
             .condition = texts.with_image,
             .omit_default = true,
             .operational = true}),
      field("purge_after", &F::purge_after,
            "the age at which the site removes unused files under workdir; 0s: never, or not known",
            {.max = 3650 * kDay, .operational = true}),
      field("budget", &F::budget, "a limit on the node-hours of its jobs in this run",
            {.table = &budget_keys(), .omit_default = true, .operational = true}),
      field("template", &F::template_file, "your own job script template",
            {.default_text = "the scheduler's shipped template", .operational = true}),
      field("world_size", &F::world_size, "ranks of a job",
            {.min = 1, .max = submit::kMaxRanks, .default_text = texts.world_size}),
      {.name = "trainer",
       .help = "builtin: the xffl-train beside xffl, or in the job's PATH behind SSH and in an "
               "image; bundle: the one that `xffl deploy` put into workdir; {program: PATH}: "
               "xffl-train at another path; {command: [WORD, ...]}: any program that honours "
               "job.json, '--job FILE' is appended",
       .type = Type::kTrainer,
       .default_text = "builtin"},
      field("image", &F::image, "a container for the trainer",
            {.table = &image_keys(),
             .applies = has_image_and_modules,
             .condition = texts.with_image,
             .omit_default = true,
             .operational = true}),
      field("deploy", &F::deploy, "`xffl deploy` at the facility",
            {.table = &deploy_keys(), .omit_default = true, .operational = true}),
      field("nccl_plugin", &F::nccl_plugin,
            "NCCL's plug-in for the site's network, such as /opt/aws-ofi-nccl/lib/libnccl-net.so, "
            "for the trainer's processes",
            {.type = Type::kSitePath, .default_text = "NCCL's choice", .operational = true}),
      field("library_path", &F::library_path,
            "the site's libraries that the plug-in or the trainer needs, for the trainer's "
            "processes, by their paths on compute nodes: single libraries (*.so*), or folders that "
            "hold nothing else",
            {.type = Type::kSitePaths, .omit_default = true, .operational = true}),
      field("cuda_compat", &F::cuda_compat,
            "the site's folder of CUDA's forward-compatibility libraries (libcuda.so.1), for a "
            "driver that is older than the trainer's CUDA",
            {.type = Type::kSitePath, .default_text = "the driver's own", .operational = true}),
      field("login_shell", &F::login_shell,
            "true: the queue manager's commands and the shell of a job first read /etc/profile and "
            "the account's profile, for sites where `module` or sbatch does not exist otherwise",
            {.applies = has_image_and_modules,
             .condition = texts.with_image,
             .omit_default = true,
             .operational = true}),
      field("modules", &F::modules, "environment modules, loaded before the lines of environment",
            {.pattern = kModule,
             .shape = "a module such as cuda/12.2",
             .applies = has_image_and_modules,
             .condition = texts.with_image,
             .operational = true}),
      field("environment", &F::environment,
            "lines of shell before the trainer starts, or a mapping NAME: value",
            {.type = Type::kEnvironment, .operational = true}),
      field("poll_interval", &F::poll_interval,
            "the time between two polls of its jobs; 0s: policy.poll_interval",
            {.max = kHour, .default_text = texts.poll_interval, .operational = true}),
      field("training", &F::training, "keys that differ here from the shared training",
            {.table = &job::training_fields()}),
      {.name = "data",
       .help = "text or token shards at the facility",
       .type = Type::kSection,
       .required = true,
       .table = &data_keys(),
       .inner = [](void* facility) { return facility; }},
  };
}

}  // namespace

const FieldTable& facility_keys() {
  using F = Facility;
  static constexpr std::string_view kWithSsh = "access: ssh";
  static const QueueTexts texts;
  static const FieldTable keys = [] {
    std::vector<Field> all{
        field("access", &F::access,
              "the way to the facility: files and commands of this machine, or SSH"),
        scheduler_key(),
        field(
            "ssh", &F::ssh, "its login nodes and credentials",
            {.table = &ssh_keys(), .applies = is_ssh, .condition = kWithSsh, .operational = true}),
        field("transfer", &F::transfer,
              "hosts for files, reached with the keys, jump hosts and streams of ssh",
              {.table = &transfer_keys(),
               .applies = is_ssh,
               .condition = kWithSsh,
               .omit_default = true,
               .operational = true}),
    };
    for (const submit::QueueManager* each : submit::queue_managers())
      if (each->keys != nullptr) all.push_back(queue_section(*each));
    for (Field& key : job_keys(texts)) all.push_back(std::move(key));
    return FieldTable(std::move(all));
  }();
  return keys;
}

FieldTable aggregation_keys(std::span<const aggregate::ServerOptimizer> optimizers) {
  using A = Aggregation;
  std::vector<Field> keys{
      optimizer_key(optimizers),
      field("weights", &A::weights, "the weight of a facility's update in the mean"),
      field("update", &A::update,
            "the update of a facility: trained minus input model, or the "
            "trained model"),
      field("update_dtype", &A::update_dtype, "the number type of updates"),
      field("publish_dtype", &A::publish_dtype,
            "the number type of the published model; the master stays fp32"),
      field("max_share", &A::max_share,
            "the largest share of one facility in the weights of the mean; the other facilities "
            "get the excess in proportion to their weights; 0: no limit",
            {.max = 1, .omit_default = true}),
  };
  for (const aggregate::ServerOptimizer& each : optimizers)
    if (!each.settings.empty()) keys.push_back(optimizer_section(each));
  return {std::move(keys)};
}

const FieldTable& observe_keys() {
  static const FieldTable keys({
      field("prometheus", &Observe::prometheus,
            "a file that node_exporter's textfile collector reads, such as "
            "/var/lib/node_exporter/xffl.prom; not set: none",
            {.default_text = "no file", .omit_default = true}),
  });
  return keys;
}

const FieldTable& hook_keys() {
  static const FieldTable keys({
      field(
          "on", &Hooks::on, "the events after which the program starts",
          {.pattern =
               "(run_stopped|run_completed|run_cancelled|run_resumed|stop_rule_met|"
               "facility_paused|facility_resumed|facility_missing|facility_left|facility_joined|"
               "published|attempt_failed|update_lost)",
           .shape =
               "an event: run_stopped, run_completed, run_cancelled, run_resumed, "
               "stop_rule_met, facility_paused, facility_resumed, facility_missing, facility_left, "
               "facility_joined, published, attempt_failed or update_lost"}),
      field("command", &Hooks::command,
            "the program and its arguments, without a shell; it gets the event as JSON on its "
            "standard input"),
      field("timeout", &Hooks::timeout, "the time after which xffl ends the program",
            {.min = 1000, .max = 600'000}),
  });
  return keys;
}

const FieldTable& experiment_keys() {
  using E = Experiment;
  static const FieldTable aggregation = aggregation_keys(aggregate::server_optimizers());
  static const FieldTable keys({
      field("project", &E::project, "the project's name, a part of folders and job names",
            {.required = true}),
      field("model", &E::model, "Hugging Face folder that round 1 starts from", {.required = true}),
      field("adapter", &E::adapter,
            "with training.lora: PEFT folder of the adapter that round 1 starts from",
            {.default_text = "a fresh adapter"}),
      field("rounds", &E::rounds, "rounds of training and averaging", {.min = 1, .max = 1e6}),
      {.name = "training",
       .help = "the training of every facility; a facility's own training section overrides it",
       .type = Type::kSection,
       .table = &job::training_fields()},
      field("aggregation", &E::aggregation, "the step from the updates to the next global model",
            {.table = &aggregation}),
      field("policy", &E::policy, "the conditions for the end of a round",
            {.table = &policy_keys(), .operational = true}),
      field("observe", &E::observe, "files about the run for other programs",
            {.table = &observe_keys(), .omit_default = true, .operational = true}),
      field("hooks", &E::hooks, "a program of this machine that starts after events of the run",
            {.table = &hook_keys(), .omit_default = true, .operational = true}),
      {.name = "facilities",
       .help = "the sites that train, by name",
       .type = Type::kFacilities,
       .required = true,
       .table = &facility_keys()},
  });
  return keys;
}

std::string expectation(const Field& key) {
  const auto range = [&](auto format) {
    return " from " + format(key.min) + (key.below_max ? " to below " : " to ") + format(key.max);
  };
  const auto integer = [](double value) {
    return value >= 9.2e18 ? std::string("2^63 - 1") : std::to_string(static_cast<int64_t>(value));
  };
  switch (key.type) {
    case Type::kText:
      return key.shape.empty() ? "one line of text" : std::string(key.shape);
    case Type::kProjectName:
      return "a name of a-z, 0-9, '_' and '-'";
    case Type::kHostPath:
    case Type::kSitePath:
      return "a path";
    case Type::kInteger:
      return "an integer" + range(integer);
    case Type::kNumber:
      return "a number" + range(format_number);
    case Type::kDuration:
      return "a duration such as 500ms, 30s, 5m, 24h or 7d" + range([](double value) {
               return format_duration(std::chrono::milliseconds(static_cast<int64_t>(value)));
             });
    case Type::kSize:
      return "a size such as 512MB, 64GB or 1TiB" +
             range([](double value) { return format_size(static_cast<int64_t>(value)); });
    case Type::kBoolean:
      return "true or false";
    case Type::kTexts:
      return key.shape.empty() ? "a line of text or a list of them"
                               : std::string(key.shape) + ", or a list of them";
    case Type::kChoice:
      return key.alternatives();
    case Type::kSection:
    case Type::kFacilities:
      return "a mapping of keys to values";
    case Type::kTrainer:
      return "builtin, bundle, {program: path} or {command: [word, ...]}";
    case Type::kEnvironment:
      return "a list of shell lines or a mapping NAME: value";
    case Type::kSitePaths:
    case Type::kHostPaths:
      return "a path or a list of paths";
    case Type::kValidationSets:
      return "a mapping of names to paths";
    case Type::kDeduced:
    case Type::kItems:
      break;
  }
  throw Error(ErrorKind::kInternal, "a key of xffl.yaml has an unknown type");
}

std::string value_text(const Field& key, const Value& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  if (const auto* number = std::get_if<double>(&value)) return format_number(*number);
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const auto* integer = std::get_if<int64_t>(&value)) {
    if (key.type == Type::kSize) return format_size(*integer);
    return key.type == Type::kDuration ? format_duration(std::chrono::milliseconds(*integer))
                                       : std::to_string(*integer);
  }
  return {};
}

}  // namespace xffl::config
