#include "xffl/facility/job_script.h"

#include <set>

#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/shell.h"
#include "xffl/facility/kept_allocation.h"
#include "xffl/plan/facility_layout.h"
#include "xffl/submit/template.h"

namespace xffl::facility {
namespace {

using Arguments = std::vector<std::string>;

constexpr uint64_t kMaxTemplateBytes = 1 << 20;

void append(Arguments& arguments, Arguments more) {
  for (std::string& argument : more) arguments.push_back(std::move(argument));
}

bool is_elsewhere(const config::Facility& facility) {
  return facility.access != config::AccessKind::kLocal || !facility.image.file.empty();
}

// A library such as libcxi.so.1, not a folder.
bool is_library(const std::string& path) {
  const std::string name = RemotePath(path).filename();
  return name.ends_with(".so") || name.find(".so.") != std::string::npos;
}

// Starts the trainer ("$@") with the site's libraries: $1 folders, $2 single libraries, $3 NCCL's
// plug-in. Only the trainer's processes get the variables. A single library is preloaded, because
// its folder may hold another libstdc++. The folders precede those of modules, which may have the
// driver's own libcuda.so.1; the site's preloads precede the libraries.
constexpr const char* kWithLibraries =
    R"sh([ -z "$1" ] || export LD_LIBRARY_PATH="$1${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"; )sh"
    R"sh([ -z "$3" ] || export NCCL_NET_PLUGIN="$3"; )sh"
    R"sh(preload=$2; shift 3; )sh"
    R"sh([ -z "$preload" ] || export LD_PRELOAD="${LD_PRELOAD:+$LD_PRELOAD:}$preload"; exec "$@")sh";

Arguments with_libraries(const config::Facility& facility, Arguments trainer) {
  std::string folders = facility.cuda_compat, libraries;
  for (const std::string& path : facility.library_path) {
    std::string& paths = is_library(path) ? libraries : folders;
    paths += (paths.empty() ? "" : ":") + path;
  }
  if (folders.empty() && libraries.empty() && facility.nccl_plugin.empty()) return trainer;
  Arguments arguments{"sh", "-c", kWithLibraries, "sh", folders, libraries, facility.nccl_plugin};
  append(arguments, std::move(trainer));
  return arguments;
}

Arguments trainer_command(const config::Facility& facility, const RemotePath& folder,
                          const Programs& programs) {
  const bool builtin = facility.trainer_command.empty();
  Arguments arguments = facility.trainer_command;
  if (builtin) arguments = {facility.on_compute_nodes(trainer_program(facility, programs))};
  append(arguments, {"--job", (folder / plan::kJobFile).str()});
  // By default a trainer that sees no GPU trains on the CPUs, too slowly for the walltime.
  if (builtin && facility.shape().gpus_per_node > 0) append(arguments, {"--device", "cuda"});
  return with_libraries(facility, std::move(arguments));
}

// The files that a login shell of bash reads, in its order.
constexpr const char* kSystemProfile = "[ ! -r /etc/profile ] || . /etc/profile";
constexpr const char* kOwnProfile =
    "for profile in ~/.bash_profile ~/.bash_login ~/.profile; do [ ! -r \"$profile\" ] || { . "
    "\"$profile\"; break; }; done";

// The values of the queue manager's template.
submit::ScriptValues queue_values(const config::Facility& facility, const std::string& job_name,
                                  const RemotePath& folder, const Programs& programs,
                                  const std::optional<RemotePath>& next_folder) {
  const submit::QueueManager& manager = facility.scheduler.manager();
  Arguments modules, image;
  if (facility.login_shell) append(modules, {kSystemProfile, kOwnProfile});
  for (const std::string& module : facility.modules)
    modules.push_back("load_module " + quote_for_shell(module));
  if (manager.image_and_modules && !facility.image.file.empty())
    image = image_command(facility, folder);
  return manager.script_values({.settings = facility.scheduler,
                                .world_size = facility.world_size,
                                .job_name = job_name,
                                .folder = folder,
                                .next_folder = next_folder,
                                .may_requeue = facility.may_requeue,
                                .modules = modules,
                                .image = image,
                                .trainer = trainer_command(facility, folder, programs),
                                .xffl = programs.xffl.string()});
}

history::FacilityState facility_in(const history::RunState& run_state, int round,
                                   const FacilityName& facility) {
  const auto known = run_state.rounds.find(round);
  if (known == run_state.rounds.end()) return {};
  const auto state = known->second.facilities.find(facility);
  return state == known->second.facilities.end() ? history::FacilityState{} : state->second;
}

int attempt_of(const history::RunState& run_state, int round, const FacilityName& facility) {
  const history::FacilityState state = facility_in(run_state, round, facility);
  const history::Attempt* current = state.current();
  if (current == nullptr) return 1;
  return current->failure ? current->number + 1 : current->number;
}

}  // namespace

Arguments image_command(const config::Facility& facility, const RemotePath& folder) {
  const config::Image& image = facility.image;
  Arguments arguments{image.program, "exec"};
  if (image.gpu == config::ImageGpu::kNv) arguments.emplace_back("--nv");
  if (image.gpu == config::ImageGpu::kRocm) arguments.emplace_back("--rocm");
  std::set<std::string> folders{facility.on_compute_nodes(facility.workdir.str())};
  for (const std::string& shard : facility.train_data)
    folders.insert(RemotePath(facility.on_compute_nodes(shard)).parent().str());
  for (const job::ValidationSet& set : facility.validation)
    folders.insert(RemotePath(facility.on_compute_nodes(set.path)).parent().str());
  for (const std::string& path : site_libraries(facility)) folders.insert(path);
  for (const std::string& path : folders) {
    if (path.find_first_of(":,") != std::string::npos)
      throw Error(ErrorKind::kConfig, "facility " + facility.name.str() + ": '" + path +
                                          "' cannot be bound into an image: rename it without ':' "
                                          "and ','");
    append(arguments, {"--bind", path});
  }
  for (const std::string& bind : image.binds) append(arguments, {"--bind", bind});
  append(arguments, {"--pwd", folder.str()});
  append(arguments, image.options);
  arguments.push_back(facility.on_compute_nodes(image.file));
  return arguments;
}

std::vector<std::string> site_libraries(const config::Facility& facility) {
  std::vector<std::string> paths = facility.library_path;
  for (const std::string& path : {facility.nccl_plugin, facility.cuda_compat})
    if (!path.empty()) paths.push_back(path);
  return paths;
}

std::string trainer_program(const config::Facility& facility, const Programs& programs) {
  if (!facility.trainer_program.empty()) return facility.trainer_program;
  return is_elsewhere(facility) ? "xffl-train" : programs.trainer.string();
}

std::string job_name(const plan::RunIdentity& identity, const job::JobKey& key,
                     const history::FacilityState& state) {
  for (const history::Attempt& attempt : state.attempts)
    if (attempt.number == key.attempt && attempt.submit_intended)
      return attempt.job_name.empty() ? key.name() : attempt.job_name;
  return plan::job_name(identity, key);
}

job::JobSpec for_compute_nodes(const config::Facility& facility, job::JobSpec spec) {
  if (facility.compute_mounts.empty()) return spec;
  for (std::string* path :
       {&spec.base_model_path, &spec.adapter_path, &spec.update_path, &spec.report_path,
        &spec.metrics_path, &spec.state_path, &spec.optimizer_path})
    *path = facility.on_compute_nodes(*path);
  for (std::string& path : spec.train_paths) path = facility.on_compute_nodes(path);
  for (job::ValidationSet& set : spec.validation) set.path = facility.on_compute_nodes(set.path);
  if (auto& packed = spec.base_model_packed)
    for (std::string* path : {&packed->path, &packed->reference_path, &packed->failure_path})
      *path = facility.on_compute_nodes(*path);
  return spec;
}

std::string job_script(const config::Facility& facility, const job::JobSpec& spec,
                       const std::string& job_name, const RemotePath& attempt_folder,
                       const Programs& programs, const std::optional<RemotePath>& next_attempt) {
  const RemotePath folder = facility.on_compute_nodes(attempt_folder);
  std::optional<RemotePath> next_folder;
  if (next_attempt) next_folder = facility.on_compute_nodes(*next_attempt);
  submit::ScriptValues script = queue_values(facility, job_name, folder, programs, next_folder);
  const std::string name(facility.scheduler.manager().name);
  script.values.insert({{"job_name", job_name},
                        {"folder", folder.str()},
                        {"nonce", spec.key.nonce},
                        {"environment", facility.environment}});
  script.optional.insert({"job_name", "environment"});
  const bool own = !facility.template_file.empty();
  const std::string text = own ? read_file(facility.template_file, kMaxTemplateBytes)
                               : std::string(submit::shipped_template(name));
  const std::string origin =
      own ? facility.template_file.string() : "the shipped template '" + name + "'";
  return submit::render_template(text, origin, script.values, script.optional);
}

history::RunState preview_state() {
  history::RunState run_state;
  run_state.identity = plan::RunIdentity{RunName("0000"), std::string(32, '0')};
  return run_state;
}

RenderedScript render_script(const config::Experiment& experiment,
                             const history::RunState& run_state, const FacilityName& facility,
                             std::optional<int> round, const Programs& programs) {
  const config::Facility& settings = experiment.facility(facility);
  if (!run_state.identity)
    throw Error(ErrorKind::kNotFound, "the run has no identity yet: its journal is empty");
  plan::Done done = run_state.done();
  // Before the import the hashes of the model and the adapter are unknown.
  const bool adapts = experiment.facilities.front().training.lora.rank > 0;
  if (done.model_sha256.empty()) done.model_sha256 = std::string(64, '0');
  if (adapts && done.adapted_sha256.empty()) done.adapted_sha256 = std::string(64, '1');
  if (round) {
    if (*round <= done.rounds_published) done.stop_rule_met = false;
    done.rounds_published = *round - 1;
    done.run_completed = false;
    const auto planned = run_state.rounds.find(*round);
    done.members =
        planned == run_state.rounds.end() ? std::set<FacilityName>{} : planned->second.members;
  }
  const auto plan = plan::next_round(experiment, *run_state.identity, done);
  if (!plan || plan->round < 1)
    throw Error(ErrorKind::kNotFound,
                "there is no round " + std::to_string(done.rounds_published + 1) +
                    ": the experiment has " + std::to_string(experiment.rounds));
  RenderedScript rendered;
  rendered.round = plan->round;
  rendered.evaluates = plan->evaluates;
  rendered.attempt = attempt_of(run_state, plan->round, facility);
  for (const plan::FacilityPlan& each : plan->facilities) {
    if (each.facility != facility) continue;
    const job::JobSpec spec =
        plan::job_spec(experiment, *run_state.identity, *plan, each, rendered.attempt);
    rendered.job_name =
        job_name(*run_state.identity, spec.key, facility_in(run_state, plan->round, facility));
    rendered.folder = plan::attempt_folder(each, rendered.attempt);
    rendered.model_folder = adapts ? each.adapted_folder : each.model_folder;
    if (adapts) rendered.adapter_folder = each.model_folder;
    rendered.script = job_script(
        settings, spec, rendered.job_name, rendered.folder, programs,
        plan->evaluates ? std::nullopt : next_attempt_folder(experiment, each, plan->round));
  }
  if (rendered.script.empty() && !plan::is_member(done, facility))
    throw Error(ErrorKind::kNotFound, "facility " + facility.str() + " is no member of round " +
                                          std::to_string(plan->round) + ": `xffl join " +
                                          facility.str() + "` lets it take part");
  if (rendered.script.empty())
    throw Error(ErrorKind::kNotFound, "facility " + facility.str() +
                                          " has no job left: all rounds are published and it has "
                                          "no data.validation to measure the last model on");
  return rendered;
}

}  // namespace xffl::facility
