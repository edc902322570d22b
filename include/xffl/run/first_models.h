// The models of round 0.
#pragma once

#include <filesystem>

#include "xffl/checkpoint/manifest.h"
#include "xffl/config/experiment.h"

namespace xffl::run {

/// Makes master, global and, with LoRA, adapted in the folder `round`. The same configuration and
/// input give the same bytes. Throws kConfig when the experiment's adapter does not match
/// training.lora, kCorrupt for a model or adapter that differs from its manifest.json of xffl, and
/// the errors of a damaged model or adapter.
struct FirstModels {
  checkpoint::Manifest master, global, adapted;  // with block hashes; adapted: empty without LoRA
};
FirstModels make_first_models(const config::Experiment& experiment,
                              const std::filesystem::path& round);

}  // namespace xffl::run
