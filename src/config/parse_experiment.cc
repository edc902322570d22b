#include <algorithm>
#include <fstream>

#include "keys.h"
#include "scalars.h"
#include "section_reader.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/folder_path.h"
#include "xffl/base/log.h"
#include "xffl/base/sha256.h"
#include "xffl/config/load.h"
#include "xffl/job/supported.h"
#include "yaml.h"

namespace xffl::config {
namespace {

constexpr uint64_t kMaxFileBytes = 1 << 20;
constexpr auto kMaxTotalSteps = static_cast<int64_t>(job::kMaxSteps);
constexpr size_t kMaxShown = 50;

/// Checks that the keys of one facility fit together, and fills in keys that follow from others.
class FacilityChecker {
 public:
  FacilityChecker(SectionReader& reader, const std::string& path, const ProjectName& project,
                  Facility& facility)
      : reader_(reader), path_(path), project_(project), facility_(facility) {}

  void check() {
    if (facility_.access == AccessKind::kSsh) check_ssh();
    check_queue();
    if (facility_.trainer_bundle && !facility_.workdir.empty())
      facility_.trainer_program =
          (facility_.workdir / kBundlesFolder / kNewestBundle / kBundlePrograms / "xffl-train")
              .str();
    check_data();
    check_compute_mounts();
  }

 private:
  void problem(const std::string& key, const std::string& message) {
    reader_.problem(reader_.mark(path_ + "." + key), message);
  }
  void require(const std::string& key, bool there, const std::string& what) {
    if (!there && !reader_.is_set(path_ + "." + key))
      problem(key, "missing required key " + in_quotes(path_ + "." + key) + ": " + what);
  }

  void check_ssh() {
    require("ssh.hosts", !facility_.ssh.hosts.empty(), "the login nodes of a facility");
    require("ssh.user", !facility_.ssh.user.empty(), "the account's name at the facility");
    require("workdir", !facility_.workdir.empty(),
            "a folder at the facility, on a file system that compute nodes share");
    if (facility_.scheduler.manager().this_machine)
      problem("scheduler", "a facility behind SSH needs '" + remote_schedulers() +
                               "': processes are started on this machine only");
    Transfer& transfer = facility_.transfer;
    const bool names_a_way =
        !transfer.user.empty() || !transfer.shell || !reader_.is_set(path_ + ".transfer.pack");
    if (transfer.hosts.empty() && reader_.is_set(path_ + ".transfer") && names_a_way)
      problem("transfer",
              "'transfer' needs hosts: without them files take the way of the commands");
    if (!transfer.hosts.empty() && transfer.user.empty()) transfer.user = facility_.ssh.user;
  }

  void check_data() {
    const TextData& text = facility_.text;
    if (text.files.empty()) {
      if (reader_.is_set(path_ + ".data"))
        require("data.train", !facility_.train_data.empty(),
                "token shards to train on, or data.text, which `xffl prepare` makes into shards");
      return;
    }
    check_template(text);
    if (facility_.workdir.empty()) return;
    facility_.prepared = prepared_folder();
    facility_.train_data = {(facility_.prepared / tokens::kPreparedTraining).str()};
    const std::string& name = facility_.name.str();
    const auto has_name = [&](const job::ValidationSet& set) { return set.name == name; };
    if (text.validation_fraction == 0) return;
    if (std::any_of(facility_.validation.begin(), facility_.validation.end(), has_name))
      return problem("data.validation." + name,
                     "'" + name +
                         "' is the name of the set that follows from data.text: choose "
                         "another one, or set validation_fraction: 0");
    facility_.validation.push_back(
        {name, (facility_.prepared / tokens::kPreparedValidation).str()});
  }

  void check_template(const TextData& text) {
    if (!text.prompt.empty() && text.prompt.find("{text}") == std::string::npos)
      problem("data.template", "'template' should contain {text}, found " + in_quotes(text.prompt));
    if (text.mask_prompt && text.prompt.empty() && text.prompt_field.empty())
      problem("data.mask_prompt", "'mask_prompt' needs a template or a prompt_field");
    check_format(text);
  }

  void check_format(const TextData& text) {
    if (text.format == DataFormat::kChat && text.chat_template.empty())
      problem("data.format",
              "'format: chat' needs chat_template, the name of the model's template");
    const bool has_prompts = text.format != DataFormat::kChat && text.format != DataFormat::kIds &&
                             text.format != DataFormat::kBin;
    const auto refuse = [&](bool is_set, const char* key) {
      if (is_set && !has_prompts)
        problem("data." + std::string(key), in_quotes(key) + " has no meaning with format: " +
                                                std::string(to_string(text.format)));
    };
    refuse(!text.prompt.empty(), "template");
    refuse(!text.prompt_field.empty(), "prompt_field");
    refuse(text.mask_prompt, "mask_prompt");
  }

  // The hash of the options is part of the name, so that shards never serve other options.
  RemotePath prepared_folder() const {
    const TextData& text = facility_.text;
    Sha256 hash;
    const auto add = [&](std::string_view part) {
      hash.update(std::to_string(part.size()) + ":");
      hash.update(part);
    };
    for (const std::string& file : text.files) add(file);
    for (const std::string_view part :
         {std::string_view(text.prompt), std::string_view(text.text_field),
          std::string_view(text.prompt_field), to_string(text.document),
          std::string_view(text.mask_prompt ? "masked" : "whole"),
          std::string_view(text.pack ? "packed" : "apart")})
      add(part);
    add(std::to_string(text.validation_fraction));
    add(std::to_string(facility_.sequence_length));
    // Keys that came later change the name only where they are used.
    if (const TextData plain; text.format != plain.format)
      for (const std::string& part :
           {std::string(to_string(text.format)), text.chat_template, text.messages_field,
            std::string(to_string(text.id_type)), std::to_string(text.end_id)})
        add(part);
    return facility_.workdir / "xffl.data" /
           (project_.str() + "." + facility_.name.str() + "-" + hash.hex().substr(0, 8));
  }

  static std::string remote_schedulers() {
    std::vector<std::string_view> names;
    for (const submit::QueueManager* each : submit::queue_managers())
      if (!each->this_machine) names.push_back(each->name);
    return "scheduler: " + job::alternatives(names);
  }

  void check_queue() {
    const submit::QueueManager& manager = facility_.scheduler.manager();
    const std::string section = std::string(manager.name) + ".";
    if (manager.complete != nullptr)
      manager.complete(
          facility_.scheduler,
          {.is_set =
               [&](auto key) { return reader_.is_set(path_ + "." + section + std::string(key)); },
           .problem =
               [&](auto key, const std::string& message) {
                 problem(section + std::string(key), message);
               }});
    check_world(manager);
    check_libraries();
    if (manager.plain_workdir &&
        facility_.workdir.str().find_first_not_of(kPlain) != std::string::npos)
      problem("workdir", "'workdir' stands in directives of " + std::string(manager.title) +
                             " and should be of letters, digits and '/._-+@=', found " +
                             in_quotes(facility_.workdir.str()));
    if (manager.image_and_modules && facility_.image.file.empty() &&
        reader_.is_set(path_ + ".image"))
      require("image.file", false, "the image that the trainer runs in");
    if (facility_.poll_interval.count() == 0 && !reader_.is_set(path_ + ".poll_interval") &&
        !reader_.is_set("policy.poll_interval"))
      facility_.poll_interval = manager.poll_interval;
  }

  // Without this check, a job would start in another folder, or not find its data.
  void check_compute_mounts() {
    if (facility_.compute_mounts.empty()) return;
    std::string mounts;
    for (const std::string& mount : facility_.compute_mounts)
      mounts += (mounts.empty() ? "" : ", ") + mount;
    const auto check = [&](const std::string& key, const std::string& path) {
      if (!path.empty() && !facility_.find_on_compute_nodes(RemotePath(path)))
        problem(key, in_quotes(path) + " is in no folder that compute nodes mount (" + mounts +
                         "): move it, or correct 'compute_mounts'");
    };
    check("workdir", facility_.workdir.str());
    check("image.file", facility_.image.file);
    for (const std::string& path : facility_.text.files) check("data.text", path);
    if (facility_.text.files.empty())
      for (const std::string& path : facility_.train_data) check("data.train", path);
    for (const job::ValidationSet& set : facility_.validation)
      if (set.path != (facility_.prepared / tokens::kPreparedValidation).str())
        check("data.validation", set.path);
  }

  // The loader reads lists with these separators.
  void check_libraries() {
    const auto check = [&](std::string_view key, const std::string& path) {
      if (path.find_first_of(": ") != std::string::npos)
        problem(std::string(key), in_quotes(path) +
                                      " stands in LD_LIBRARY_PATH or LD_PRELOAD and " +
                                      "should have no ':' and no space");
    };
    for (const std::string& path : facility_.library_path) check("library_path", path);
    check("cuda_compat", facility_.cuda_compat);
  }

  void check_world(const submit::QueueManager& manager) {
    const submit::JobShape shape = facility_.shape();
    const int64_t ranks = int64_t{shape.nodes} * shape.tasks_per_node;
    const std::string product = std::to_string(shape.nodes) + " nodes * " +
                                std::to_string(shape.tasks_per_node) + " tasks_per_node";
    if (ranks > submit::kMaxRanks)
      return problem(std::string(manager.name) + ".nodes",
                     product + " are more than a million ranks");
    if (reader_.is_set(path_ + ".world_size") && facility_.world_size != ranks)
      return problem("world_size", "'world_size' is " + std::to_string(facility_.world_size) +
                                       ", but a job of " + std::string(manager.title) + " has " +
                                       product + ": leave world_size out");
    facility_.world_size = static_cast<int>(ranks);
  }

  static constexpr std::string_view kPlain =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789/._-+@=";

  SectionReader& reader_;
  const std::string& path_;
  const ProjectName& project_;
  Facility& facility_;
};

class ExperimentReader {
 public:
  ExperimentReader(std::filesystem::path project_folder, std::vector<Problem>& problems)
      : reader_(project_folder, problems), problems_(problems) {
    experiment_.project_folder = std::move(project_folder);
  }

  Experiment read(const Node& root) {
    if (root.kind != Node::Kind::kMapping) {
      reader_.problem(root.mark, "expected keys and values, found " + describe(root));
      return experiment_;
    }
    reader_.read(root, experiment_keys(), &experiment_, "");
    job::TrainingSpec defaults;
    if (const Node* training = root.find("training");
        training != nullptr && training->kind == Node::Kind::kMapping)
      reader_.read(*training, job::training_fields(), &defaults, "training");
    if (const Node* facilities = root.find("facilities");
        facilities != nullptr && facilities->kind == Node::Kind::kMapping)
      read_facilities(*facilities, defaults);
    check_adapters();
    check_policy();
    check_budgets();
    check_stop_rules();
    check_hooks();
    return std::move(experiment_);
  }

 private:
  void read_facilities(const Node& mapping, const job::TrainingSpec& defaults) {
    if (mapping.items.empty())
      reader_.problem(mapping.mark, "'facilities' is empty: at least one is needed");
    for (size_t i = 0; i < mapping.items.size(); ++i) {
      Facility facility;
      facility.training = defaults;
      try {
        facility.name = FacilityName(mapping.keys[i].text);
      } catch (const Error& error) {
        reader_.problem(mapping.keys[i].mark, error.what());
      }
      const std::string path = "facilities." + log::printable(mapping.keys[i].text, 80);
      reader_.note(path, mapping.keys[i].mark);
      if (!reader_.expect_mapping(mapping.items[i], *experiment_keys().find("facilities"), path))
        continue;
      read_facility(mapping.items[i], path, facility);
      experiment_.facilities.push_back(std::move(facility));
    }
    std::sort(experiment_.facilities.begin(), experiment_.facilities.end(),
              [](const Facility& a, const Facility& b) { return a.name < b.name; });
  }

  void read_facility(const Node& mapping, const std::string& path, Facility& facility) {
    // The reader reports a missing key at the facility's name, not at its first key.
    Node at_name = mapping;
    at_name.mark = reader_.mark(path);
    const Node* access = mapping.find("access");
    const bool remote = access != nullptr && access->text == "ssh";
    reader_.set_remote(remote);
    reader_.read(at_name, facility_keys(), &facility, path);
    if (facility.workdir.empty() && !facility.name.empty() && !remote)
      facility.workdir =
          RemotePath((experiment_.project_folder / "work" / facility.name.str()).string());
    FacilityChecker(reader_, path, experiment_.project, facility).check();
    check_training(path, facility);
  }

  /// The path of a training key, the facility's own or the shared one.
  std::string training_path(const std::string& facility_path, const std::string& key) const {
    const std::string own = facility_path + ".training." + key;
    return reader_.is_set(own) ? own : "training." + key;
  }

  void check_training(const std::string& path, Facility& facility) {
    job::TrainingSpec& training = facility.training;
    const std::string steps = training_path(path, "steps_per_round");
    training.total_rounds = training.epochs > 0 ? experiment_.rounds : 0;
    if (training.epochs > 0) training.steps = 0;  // a facility's own epochs replace shared steps
    if (training.steps == 0 && training.epochs == 0 && !reader_.is_set(steps)) {
      if (!std::exchange(steps_missed_, true))
        reader_.problem(reader_.mark(path),
                        "missing required key 'training.steps_per_round': "
                        "optimizer steps of a facility in one round (or give "
                        "'training.epochs_per_round')");
    }
    if (training.steps > kMaxTotalSteps / experiment_.rounds)
      reader_.problem(reader_.mark(steps),
                      "rounds * steps_per_round is " + std::to_string(training.steps) + " * " +
                          std::to_string(experiment_.rounds) + ", at most 10^9 steps are allowed");
    training.schedule.total_steps = training.steps * experiment_.rounds;
    if (training.steps > 0 && training.schedule.warmup_steps > training.schedule.total_steps)
      reader_.problem(reader_.mark(training_path(path, "schedule.warmup_steps")),
                      "'warmup_steps' is " + std::to_string(training.schedule.warmup_steps) +
                          ", more than all steps of '" + facility.name.str() +
                          "': " + std::to_string(experiment_.rounds) + " rounds * " +
                          std::to_string(training.steps) + " steps_per_round");
    check_ranks(path, facility);
  }

  void check_ranks(const std::string& path, const Facility& facility) {
    const job::TrainingSpec& training = facility.training;
    const std::string world = path + ".world_size";
    const auto mark = [&](const std::string& key) {
      return reader_.mark(reader_.is_set(world) ? world : training_path(path, key));
    };
    const int64_t apart = training.groups.count * training.pipeline.stages;
    if (facility.world_size % apart != 0)
      return reader_.problem(mark(training.groups.count > 1 ? "groups.count" : "pipeline.stages"),
                             "'groups.count' * 'pipeline.stages' is " + std::to_string(apart) +
                                 ", which does not divide the " +
                                 std::to_string(facility.world_size) + " ranks of '" +
                                 facility.name.str() + "'");
    const int64_t ranks = facility.world_size / apart;
    if (training.batch_size % ranks != 0)
      reader_.problem(mark("batch_size"),
                      "'batch_size' counts the sequences of all ranks and should be a multiple of "
                      "'world_size', found " +
                          std::to_string(training.batch_size) + " over " + std::to_string(ranks) +
                          (apart == 1 ? " ranks" : " ranks of a group and stage"));
    check_supported(path, facility);
  }

  // Without this check, the built-in trainer would report the problem after the queue. Other
  // trainers have their own limits.
  void check_supported(const std::string& path, const Facility& facility) {
    if (!facility.trainer_command.empty()) return;
    const job::Ranks ranks{facility.world_size, facility.shape().tasks_per_node};
    if (const auto found =
            job::find_unsupported(facility.training, facility.validation.size(), ranks))
      reader_.problem(reader_.mark(training_path(path, found->key)),
                      found->message + " ('" + facility.name.str() + "')");
  }

  // The mean needs adapters of one shape at all facilities, or no adapters.
  void check_adapters() {
    const std::vector<Facility>& all = experiment_.facilities;
    if (!experiment_.adapter.empty() && !all.empty() && all.front().training.lora.rank == 0)
      reader_.problem(
          reader_.mark("adapter"),
          "'adapter' is given, but 'training.lora.rank' is 0: no adapter would be trained");
    const auto alike = [](const job::Lora& a, const job::Lora& b) {
      return a.rank == b.rank &&
             (a.rank == 0 || (a.alpha == b.alpha && a.rank_stabilized == b.rank_stabilized &&
                              a.weight_decomposed == b.weight_decomposed &&
                              sorted(a.target_modules) == sorted(b.target_modules) &&
                              sorted(a.modules_to_save) == sorted(b.modules_to_save)));
    };
    for (const Facility& facility : all) {
      const std::string path = "facilities." + facility.name.str();
      const job::Lora& lora = facility.training.lora;
      if (!alike(lora, all.front().training.lora))
        reader_.problem(reader_.mark(training_path(path, "lora.rank")),
                        "'lora' of '" + facility.name.str() + "' and '" + all.front().name.str() +
                            "' differ: adapters are averaged, so rank, alpha, rank_stabilized, "
                            "weight_decomposed, target_modules and modules_to_save "
                            "should be the same at all facilities");
      if (lora.rank > 0 && lora.alpha == 0)
        reader_.problem(reader_.mark(training_path(path, "lora.alpha")),
                        "'lora.alpha' is 0: the adapters would do nothing");
      if (lora.rank > 0 && lora.target_modules.empty())
        reader_.problem(reader_.mark(training_path(path, "lora.target_modules")),
                        "'lora.target_modules' is empty: no matrix would get adapters");
    }
  }

  static std::vector<std::string> sorted(std::vector<std::string> modules) {
    std::sort(modules.begin(), modules.end());
    return modules;
  }

  // Without a walltime, no job fits into a budget.
  void check_budgets() {
    const bool total = experiment_.policy.budget.node_hours > 0;
    for (Facility& facility : experiment_.facilities) {
      const bool own = facility.budget.node_hours > 0;
      facility.may_requeue = !own && !total;
      if (facility.may_requeue || facility.shape().walltime.count() > 0) continue;
      reader_.problem(
          reader_.mark(own ? "facilities." + facility.name.str() + ".budget" : "policy.budget"),
          "a budget of node-hours needs jobs with a walltime, and those of '" +
              facility.name.str() +
              "' have none (scheduler: " + std::string(facility.scheduler.manager().name) + ")");
    }
  }

  void check_stop_rules() {
    if (!experiment_.policy.stop_when.need_validation()) return;
    for (const Facility& facility : experiment_.facilities)
      if (!facility.validation.empty()) return;
    reader_.problem(reader_.mark("policy.stop_when"),
                    "the rules on the loss need a validation set: no facility has "
                    "'data.validation'");
  }

  void check_hooks() {
    if (experiment_.hooks.command.empty() && reader_.is_set("hooks"))
      reader_.problem(reader_.mark("hooks"),
                      "'hooks' needs command: the program to start, such as [./notify.sh]");
  }

  void check_policy() {
    const RoundPolicy& policy = experiment_.policy;
    const auto count = static_cast<int>(experiment_.facilities.size());
    if (count > 0 && policy.quorum > count)
      reader_.problem(
          reader_.mark("policy.quorum"),
          "'policy.quorum' is " + std::to_string(policy.quorum) + ", but there " +
              (count == 1 ? "is 1 facility" : "are " + std::to_string(count) + " facilities"));
    check_max_share(policy, count);
    // A deadline has no effect with the default of on_missing, so the file must set both.
    if (policy.deadline.count() > 0 && !reader_.is_set("policy.on_missing"))
      reader_.problem(reader_.mark("policy.deadline"),
                      "'policy.deadline' needs 'policy.on_missing': skip continues without late "
                      "facilities, fail ends the run, wait (the default) waits and notifies you");
  }

  // The fewest updates of a round must be able to keep the share.
  void check_max_share(const RoundPolicy& policy, int count) {
    const double share = experiment_.aggregation.max_share;
    const int least = policy.quorum > 0                       ? policy.quorum
                      : policy.on_missing == OnMissing::kSkip ? 1
                                                              : count;
    if (share == 0 || least == 0 || share * least >= 1 - 1e-9) return;
    reader_.problem(reader_.mark("aggregation.max_share"),
                    "'aggregation.max_share' is " + format_number(share) +
                        ", but a round may have " + std::to_string(least) +
                        (least == 1 ? " update" : " updates") + ", of which one has a share of " +
                        format_number(1.0 / least) +
                        " or more: raise 'max_share' or 'policy.quorum'");
  }

  SectionReader reader_;
  std::vector<Problem>& problems_;
  Experiment experiment_;
  bool steps_missed_ = false;
};

/// Reads a whole file; problems come back sorted by place.
Experiment parse(std::string_view yaml, const std::filesystem::path& project_folder,
                 std::vector<Problem>& problems) {
  Experiment experiment;
  const Node root = read_yaml(yaml, problems);
  const bool is_tree = problems.empty() || !root.items.empty();
  if (is_tree) experiment = ExperimentReader(project_folder, problems).read(root);
  std::stable_sort(problems.begin(), problems.end(), [](const Problem& a, const Problem& b) {
    return std::pair(a.line, a.column) < std::pair(b.line, b.column);
  });
  return experiment;
}

}  // namespace

std::string format_problems(const std::filesystem::path& file,
                            const std::vector<Problem>& problems) {
  std::string text;
  for (size_t i = 0; i < problems.size() && i < kMaxShown; ++i) {
    const Problem& problem = problems[i];
    if (!text.empty()) text += '\n';
    text += log::printable(file.string(), 4000);
    if (problem.line > 0)
      text += ":" + std::to_string(problem.line) + ":" + std::to_string(problem.column);
    text += ": error: " + problem.message;
  }
  if (problems.size() > kMaxShown)
    text += "\n... and " + std::to_string(problems.size() - kMaxShown) + " more";
  return text;
}

Experiment parse_experiment(const std::string& yaml, const std::filesystem::path& file,
                            const std::filesystem::path& project_folder) {
  std::vector<Problem> problems;
  Experiment experiment = parse(yaml, folder_path(project_folder), problems);
  if (!problems.empty()) throw Error(ErrorKind::kConfig, format_problems(file, problems));
  return experiment;
}

Experiment load_experiment(const std::filesystem::path& project_folder) {
  const std::filesystem::path file = project_folder / "xffl.yaml";
  std::error_code error;
  if (!std::filesystem::exists(file, error))
    throw Error(ErrorKind::kNotFound, "there is no " + file.string() +
                                          ": make one with 'xffl config --project " +
                                          project_folder.string() + "'");
  std::string text;
  try {
    text = read_file(file, kMaxFileBytes);
  } catch (const Error& failure) {
    if (failure.kind() != ErrorKind::kCorrupt) throw;
    throw Error(ErrorKind::kConfig, failure.what());
  }
  Experiment experiment = parse_experiment(text, file, project_folder);
  // A run keeps the experiment as a longer text, and each command reads this text.
  with_context("in the copy of " + file.string() + " for a run folder", [&] {
    parse_experiment(format_experiment(experiment), "config.resolved.yaml", project_folder);
  });
  return experiment;
}

}  // namespace xffl::config
