#include "space.h"

#include "names.h"
#include "xffl/base/error.h"

namespace xffl::transfer {

void require_space(const std::string& where, uint64_t missing, uint64_t free) {
  const uint64_t needed = with_margin(missing);
  if (free >= needed) return;
  throw Error(ErrorKind::kIo, "not enough space in " + where + ": " + std::to_string(needed) +
                                  " bytes are needed, " + std::to_string(free) +
                                  " are free; free at least " + std::to_string(needed - free) +
                                  " bytes (or raise the quota) and run again");
}

}  // namespace xffl::transfer
