// Files as differences from a file that the other side holds: published models of consecutive
// rounds.
//
// Both files are seen as 16-bit little-endian words, which is what a safetensors file of BF16 or
// F16 is. A word is the distance of two floats in units of the last place (reinterpreted as
// integers in the order of the floats they stand for), so that a small update gives small numbers;
// their low and their high bytes go into a plane each, which zstd's level 1 then makes small. Any
// two files of one size come back bit by bit, whatever they hold. docs/reference/formats.md has the
// format.
//
// What is decoded comes from elsewhere: sizes are checked before anything is allocated, and what is
// made is only named right when its SHA-256 is the expected one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <stop_token>
#include <string>

#include "xffl/checkpoint/manifest.h"

namespace xffl::pack {

/// Raw bytes of a block. Each is decoded without the others.
inline constexpr uint32_t kBlockBytes = 1u << 20;

/// A file to be packed against, and its SHA-256.
struct Reference {
  std::filesystem::path path;
  std::string sha256;
};

/// Writes `file`, of which a manifest says `raw`, as its differences from `reference` to `out`:
/// with `threads` threads beside the caller's, in bounded memory, synced. Without a reference its
/// own words are split into planes. Returns what a manifest says of `out`, or nothing (and no file)
/// as soon as that has more than `max_bytes`. Throws kRejected when `file` is not as `raw` says or
/// the reference has another size, kIo, kCancelled.
std::optional<checkpoint::ManifestFile> encode(const std::filesystem::path& file,
                                               const checkpoint::ManifestFile& raw,
                                               const std::optional<Reference>& reference,
                                               const std::filesystem::path& out, uint64_t max_bytes,
                                               int threads, std::stop_token stop = {});

/// The inverse: writes `out`, synced, which is then as `raw` says. `reference` is the file that
/// `packed` was made from, or empty when it was made without. Returns what a manifest says of
/// `out`. Throws kCorrupt (file, offset, what is wrong), also when the result has another SHA-256
/// than `raw` because either input is damaged; kRejected when `packed` is of another file or
/// reference; kIo. Then there is no `out`.
checkpoint::ManifestFile decode(const std::filesystem::path& packed,
                                const checkpoint::ManifestFile& raw,
                                const std::optional<Reference>& reference,
                                const std::filesystem::path& out, int threads);

}  // namespace xffl::pack
