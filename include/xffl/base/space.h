// Whether there is room, said before the first byte is written.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace xffl {

/// What a file system should have free for `bytes` more: folders and other files grow as well.
inline uint64_t with_margin(uint64_t bytes) { return bytes + bytes / 64 + (1u << 20); }

/// Throws kIo unless `free` bytes hold `missing` and a margin: needed, free, what to do. `where`
/// names the folder.
void require_space(const std::string& where, uint64_t missing, uint64_t free);
/// The same of a folder of this machine (empty: the current one), or of the nearest one above it
/// that is there. A file system that does not say how much is free has enough.
void require_space(const std::filesystem::path& folder, uint64_t missing);

}  // namespace xffl
