// Opening what may only be a regular file.
#pragma once

#include <cstdint>
#include <filesystem>

#include "xffl/base/file.h"

namespace xffl::checkpoint {

/// Opens for reading; a link, a pipe or a device is refused (kRejected) without being waited for.
UniqueFd open_regular(const std::filesystem::path& path, uint64_t& size_bytes);

}  // namespace xffl::checkpoint
