// The first step of a run: what round 1 starts from.
#pragma once

#include "xffl/facility/context.h"

namespace xffl::run {

/// Round 0, once: the given model as float32 master, and as the facilities will see it; with LoRA
/// the adapter, and the model under it as it is. Throws kConfig when the adapter that the
/// experiment names is not as training.lora says, and what reading a damaged model or adapter
/// throws.
void import_model(facility::Context& context);

}  // namespace xffl::run
