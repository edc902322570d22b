// What binds a row to all rows before it.
#pragma once

#include <string>
#include <string_view>

#include "xffl/history/store.h"

namespace xffl::history {

/// The `previous` of the first event.
std::string genesis_chain();

/// SHA-256 over `previous` and every field of the event, each with its length in front.
std::string next_chain(std::string_view previous, const StoredEvent& event);

}  // namespace xffl::history
