// Checks of free disk space before the first byte is written.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace xffl {

/// The free bytes required to write `bytes`: folders and other files grow as well.
inline uint64_t with_margin(uint64_t bytes) { return bytes + bytes / 64 + (1u << 20); }

/// Throws kIo with the needed and the free bytes unless `free` holds `missing` and a margin.
/// `where` names the folder.
void require_space(const std::string& where, uint64_t missing, uint64_t free);
/// Checks the file system of a folder on this machine (empty: the current folder), or of its
/// nearest existing ancestor. A file system that does not report free space passes.
void require_space(const std::filesystem::path& folder, uint64_t missing);

}  // namespace xffl
