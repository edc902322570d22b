#include "job_script.h"

#include <set>

#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/shell.h"
#include "xffl/plan/facility_layout.h"
#include "xffl/submit/template.h"

namespace xffl::facility {
namespace {

using Words = std::vector<std::string>;

constexpr uint64_t kMaxTemplateBytes = 1 << 20;

void append(Words& words, Words more) {
  for (std::string& word : more) words.push_back(std::move(word));
}

bool is_elsewhere(const config::Facility& facility) {
  return facility.access != config::AccessKind::kLocal || !facility.image.file.empty();
}

Words trainer_words(const config::Facility& facility, const RemotePath& folder,
                    const Programs& programs) {
  Words words = facility.trainer_command;
  if (words.empty() && !facility.trainer_program.empty())
    words = {facility.trainer_program};
  else if (words.empty())
    words = {is_elsewhere(facility) ? "xffl-train" : programs.trainer.string()};
  append(words, {"--job", (folder / plan::kJobFile).str()});
  return words;
}

// `apptainer exec ... image`, with the folders that the job reads and writes.
Words image_words(const config::Facility& facility, const RemotePath& folder) {
  const config::Image& image = facility.image;
  Words words{image.program, "exec"};
  if (image.gpu == config::ImageGpu::kNv) words.emplace_back("--nv");
  if (image.gpu == config::ImageGpu::kRocm) words.emplace_back("--rocm");
  std::set<std::string> folders{facility.workdir.str()};
  for (const std::string& shard : facility.train_data)
    folders.insert(RemotePath(shard).parent().str());
  for (const job::ValidationSet& set : facility.validation)
    folders.insert(RemotePath(set.path).parent().str());
  for (const std::string& path : folders) {
    if (path.find_first_of(":,") != std::string::npos)
      throw Error(ErrorKind::kConfig, "facility " + facility.name.str() + ": '" + path +
                                          "' cannot be bound into an image: rename it without ':' "
                                          "and ','");
    append(words, {"--bind", path});
  }
  for (const std::string& bind : image.binds) append(words, {"--bind", bind});
  append(words, {"--pwd", folder.str()});
  append(words, image.options);
  words.push_back(image.file);
  return words;
}

Words process_launch(const config::Facility& facility, const RemotePath& folder,
                     const Programs& programs) {
  Words words = {programs.xffl.string(), "exec", "--world-size",
                 std::to_string(facility.world_size), "--"};
  append(words, trainer_words(facility, folder, programs));
  return words;
}

// One task per rank. srun takes the job's shape from its environment, except for --cpus-per-task.
Words slurm_launch(const config::Facility& facility, const RemotePath& folder,
                   const Programs& programs) {
  const submit::SlurmSettings& slurm = facility.slurm;
  Words words = {"srun",
                 "--export=ALL",
                 "--kill-on-bad-exit=1",
                 "--nodes=" + std::to_string(slurm.nodes),
                 "--ntasks=" + std::to_string(facility.world_size),
                 "--ntasks-per-node=" + std::to_string(slurm.tasks_per_node)};
  if (slurm.cpus_per_task > 0)
    words.push_back("--cpus-per-task=" + std::to_string(slurm.cpus_per_task));
  append(words, slurm.srun);
  if (!facility.image.file.empty()) append(words, image_words(facility, folder));
  append(words, trainer_words(facility, folder, programs));
  return words;
}

struct Kind {
  std::string name;  // of the shipped template
  submit::TemplateValues values;
  std::set<std::string, std::less<>> optional;  // that a template of the project's may leave out
};

Kind kind_of(const config::Facility& facility, const std::string& job_name,
             const RemotePath& folder, const Programs& programs,
             const std::optional<RemotePath>& next_folder) {
  if (facility.scheduler == config::SchedulerKind::kProcess)
    return {"process", {{"launch", process_launch(facility, folder, programs)}}, {}};
  Words modules;
  for (const std::string& module : facility.modules)
    modules.push_back("load_module " + quote_for_shell(module));
  return {
      "slurm",
      {{"options", submit::slurm_options(facility.slurm, job_name, folder)},
       {"modules", modules},
       {"launch", slurm_launch(facility, folder, programs)},
       {"next_folder", next_folder ? next_folder->str() : ""},
       {"keep_seconds", std::to_string(next_folder ? facility.slurm.keep_allocation.count() : 0)},
       {"warning_seconds", std::to_string(facility.slurm.warning.count())}},
      {"modules", "next_folder", "keep_seconds", "warning_seconds"}};
}

}  // namespace

std::string job_script(const config::Facility& facility, const job::JobSpec& spec,
                       const RemotePath& folder, const Programs& programs,
                       const std::optional<RemotePath>& next_folder) {
  const std::string name = spec.key.job_name();
  Kind kind = kind_of(facility, name, folder, programs, next_folder);
  kind.values.insert({{"job_name", name},
                      {"folder", folder.str()},
                      {"nonce", spec.key.nonce},
                      {"environment", facility.environment}});
  kind.optional.insert({"job_name", "environment"});
  const bool own = !facility.template_file.empty();
  const std::string text = own ? read_file(facility.template_file, kMaxTemplateBytes)
                               : std::string(submit::shipped_template(kind.name));
  const std::string origin =
      own ? facility.template_file.string() : "the shipped template '" + kind.name + "'";
  return submit::render_template(text, origin, kind.values, kind.optional);
}

}  // namespace xffl::facility
