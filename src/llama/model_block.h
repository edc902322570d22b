// A block's weights, and the scope of a unit's use.
#pragma once

#include <exception>

#include "layers.h"
#include "xffl/llama/model.h"

namespace xffl::llama {

struct Model::Block {
  Weight* input_norm = nullptr;
  Weight* attention_norm = nullptr;
  std::vector<Linear> qkv;
  Linear output;
  std::vector<Linear> gate_up;
  Linear down;
};

/// Calls enter, and leave at the scope's end unless an exception ends it.
class Model::Use {
 public:
  Use(Model& model, int unit, UnitUse use)
      : hooks_(model.options_.hooks),
        unit_(unit),
        use_(use),
        exceptions_(std::uncaught_exceptions()) {
    if (hooks_.enter) hooks_.enter(unit_, use_);
  }
  ~Use() noexcept(false) {
    if (hooks_.leave && std::uncaught_exceptions() == exceptions_) hooks_.leave(unit_, use_);
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

 private:
  const UnitHooks& hooks_;
  int unit_;
  UnitUse use_;
  int exceptions_;
};

}  // namespace xffl::llama
