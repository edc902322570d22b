#include "supported.h"

#include <string>

#include "xffl/base/error.h"

namespace xffl::train {
namespace {

[[noreturn]] void refuse(const std::string& what) { throw Error(ErrorKind::kConfig, what); }

void refuse_if(bool given, const std::string& key) {
  if (given) refuse("training." + key + ": this trainer cannot do it yet: leave it out");
}

}  // namespace

void check_supported(const job::JobSpec& spec, int /*world_size*/) {
  const job::TrainingSpec& training = spec.training;
  refuse_if(training.lora.rank > 0, "lora");
  refuse_if(!training.freeze.empty(), "freeze");
  refuse_if(training.proximal > 0, "proximal");
  refuse_if(training.groups.count > 1, "groups");
  refuse_if(training.pipeline.stages > 1, "pipeline");
  refuse_if(training.deterministic, "deterministic");
  refuse_if(training.keep_optimizer, "keep_optimizer");
  refuse_if(training.max_tokens > 0, "max_tokens");
  refuse_if(training.validation_interval > 0, "validation_interval");
  refuse_if(training.early_stop_patience > 0, "early_stop_patience");
}

}  // namespace xffl::train
