// The statement about a published model.
#pragma once

#include <string>

#include "recorded_run.h"

namespace xffl::verify {

/// The text of statement.json. Throws kNotFound for a round that is not published, kCorrupt for a
/// model whose manifest has another root hash.
std::string format_statement(const RecordedRun& run, int round);

}  // namespace xffl::verify
