// Whether there is room, said before the first byte moves.
#pragma once

#include <cstdint>
#include <string>

namespace xffl::transfer {

/// Throws kIo unless `free` bytes hold `missing` and a margin. `where` names the folder.
void require_space(const std::string& where, uint64_t missing, uint64_t free);

}  // namespace xffl::transfer
