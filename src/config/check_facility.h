// What keys of one facility must say together.
#pragma once

#include <string>

#include "section_reader.h"

namespace xffl::config {

/// Notes what does not fit together and fills in what follows from other keys. `path` is the
/// facility's, "facilities.alba".
void check_facility(SectionReader& reader, const std::string& path, Facility& facility);

}  // namespace xffl::config
