#include "supported.h"

#include "xffl/base/error.h"

namespace xffl::train {

void check_supported(const job::JobSpec& spec, const job::Ranks& ranks) {
  const job::TrainingSpec& training = spec.training;
  if (const auto found = job::find_unsupported(training, spec.validation.size(), ranks))
    throw Error(ErrorKind::kConfig, found->message);
  if (training.lora.rank == 0 && !spec.adapter_path.empty())
    throw Error(
        ErrorKind::kConfig,
        "adapter_path is given, but training.lora.rank is 0: this trainer trains adapters only");
}

}  // namespace xffl::train
