// The values of the shipped part templates/parts/ranks.sh, which the job scripts of several queue
// managers include.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "xffl/submit/template.h"

namespace xffl::submit {

/// The values of a template that includes the part: `options` for the queue manager's directives,
/// and the job's modules, trainer, ranks and times. `request.settings` gives the shape.
ScriptValues rank_script_values(const ScriptRequest& request, std::vector<std::string> options,
                                std::chrono::seconds time, std::chrono::seconds warning);

}  // namespace xffl::submit
