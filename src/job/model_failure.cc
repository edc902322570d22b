#include "xffl/job/model_failure.h"

#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"

namespace xffl::job {

std::filesystem::path model_failure_path(const JobSpec& spec) {
  return std::filesystem::path(spec.report_path).parent_path() / "model.failure";
}

void note_model_failure(const std::filesystem::path& path, const std::string& reason) {
  try {
    make_dirs(path.parent_path());
    write_file_atomic(path, reason + "\n");
  } catch (const Error& error) {
    log::warning("the coordinator cannot be told what is wrong with the model",
                 {{"problem", error.what()}});
  }
}

}  // namespace xffl::job
