// Between the model's units and the flat buffers that hold their parameters.
#pragma once

#include "xffl/llama/model.h"
#include "xffl/train/loaded_model.h"

namespace xffl::train {

/// Makes a unit's weights ready for the model, and takes the gradients of the trained ones from it.
/// `loaded`'s buffers and model must outlive the hooks; itself it may move.
llama::UnitHooks make_hooks(LoadedModel& loaded);

}  // namespace xffl::train
