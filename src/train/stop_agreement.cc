#include "stop_agreement.h"

#include "agree.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"

namespace xffl::train {

bool leaves_checkpoint(const job::JobSpec& spec) {
  return spec.training.steps > 0 && spec.on_stop == job::OnStop::kCheckpoint;
}

bool StopAgreement::told_to_finish(int64_t steps_done) {
  if (finishing_) return true;
  const StopRequest mine = context_.stop ? context_.stop() : StopRequest::kNone;
  const StopRequest agreed = agree_on_stop(context_.group, context_.device, mine);
  if (agreed == StopRequest::kNone) return false;
  if (agreed == StopRequest::kAbort)
    throw Error(ErrorKind::kCancelled, "stopped on request: no update was written");
  if (steps_done == 0 && !leaves_checkpoint(spec_)) {
    throw Error(ErrorKind::kCancelled, spec_.training.steps == 0
                                           ? "told to finish before all was measured"
                                           : "told to finish before the first step was done: no "
                                             "update was written");
  }
  if (context_.group.rank() == 0)
    log::warning("finishing early", {{"steps", steps_done}, {"of", spec_.training.steps}});
  finishing_ = true;
  return true;
}

void StopAgreement::end_if_aborted() const {
  if (context_.stop && context_.stop() == StopRequest::kAbort)
    throw Error(ErrorKind::kCancelled, "stopped on request: no update was written");
}

}  // namespace xffl::train
