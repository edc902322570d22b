// job.json: a written job is read back, and the name of its state is a word of a shell.
#include "fuzz.h"
#include "xffl/job/job_spec.h"

using namespace xffl;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto spec =
      fuzz::accepted([&] { return job::parse_job_spec(fuzz::text_of(data, size), "job.json"); });
  if (!spec) return 0;
  const std::string name = spec->key.optimizer_state_name();
  fuzz::expect(
      name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_-") == std::string::npos,
      "a state's name is a word", name);
  fuzz::expect(spec->training.steps == 0 || !spec->train_paths.empty(), "a training has data");
  const std::string text = job::format_job_spec(*spec);
  const job::JobSpec again = job::parse_job_spec(text, "job.json");
  fuzz::expect(again == *spec, "a written job is read back", text);
  fuzz::expect(job::format_job_spec(again) == text, "the text is a fixed point", text);
  return 0;
}
