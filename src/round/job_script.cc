#include "job_script.h"

#include "xffl/base/file.h"
#include "xffl/submit/template.h"

namespace xffl::round {
namespace {

constexpr uint64_t kMaxTemplateBytes = 1 << 20;

std::vector<std::string> trainer_words(const config::Facility& facility, const RemotePath& folder,
                                       const Programs& programs) {
  std::vector<std::string> words = facility.trainer_command;
  if (words.empty())
    words.push_back(facility.trainer_program.empty() ? programs.trainer.string()
                                                     : facility.trainer_program);
  words.push_back("--job");
  words.push_back((folder / "job.json").str());
  return words;
}

// How a scheduler's job starts the ranks of its world.
std::vector<std::string> launch_words(const config::Facility& facility, const RemotePath& folder,
                                      const Programs& programs) {
  std::vector<std::string> words = {programs.xffl.string(), "exec", "--world-size",
                                    std::to_string(facility.world_size), "--"};
  for (std::string& word : trainer_words(facility, folder, programs))
    words.push_back(std::move(word));
  return words;
}

}  // namespace

std::string job_script(const config::Facility& facility, const job::JobSpec& spec,
                       const RemotePath& folder, const Programs& programs) {
  const bool own = !facility.template_file.empty();
  const std::string text = own ? read_file(facility.template_file, kMaxTemplateBytes)
                               : std::string(submit::shipped_template("process"));
  const std::string origin =
      own ? facility.template_file.string() : "the shipped template 'process'";
  const submit::TemplateValues values = {
      {"job_name", spec.key.job_name()},
      {"folder", folder.str()},
      {"nonce", spec.key.nonce},
      {"environment", facility.environment},
      {"launch", launch_words(facility, folder, programs)},
  };
  return submit::render_template(text, origin, values, {"job_name", "environment"});
}

}  // namespace xffl::round
