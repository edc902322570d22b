// Delta compression of a file against a reference file that the receiver holds, for the published
// models of consecutive rounds.
//
// The codec reads both files as 16-bit little-endian words, the elements of a BF16 or F16
// safetensors file. It maps each word to an integer with the order of the floats and encodes the
// difference to the reference. The difference is a distance in units of the last place, small for a
// small update. The low and the high bytes of the differences form two planes, which zstd
// compresses at level 1. The codec is lossless for any two files of the same size.
// docs/reference/formats.md has the format.
//
// A packed file is hostile. The decoder checks sizes before it allocates memory, and keeps only an
// output with the expected SHA-256.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <stop_token>
#include <string>

#include "xffl/checkpoint/manifest.h"

namespace xffl::pack {

/// The number of raw bytes in a block. The decoder decodes each block independently.
inline constexpr uint32_t kBlockBytes = 1u << 20;

/// A reference file and its SHA-256.
struct Reference {
  std::filesystem::path path;
  std::string sha256;
};

/// Packs `file`, whose manifest entry is `raw`, against `reference` into `out` and syncs `out`;
/// without a reference, compresses the planes of the words themselves. Uses `threads` threads
/// beside the caller's and bounded memory. Returns the manifest entry of `out`. As soon as `out`
/// exceeds `max_bytes`, removes `out` and returns nothing. Throws kRejected when `file` does not
/// match `raw` or the reference has another size, kIo, kCancelled.
std::optional<checkpoint::ManifestFile> encode(const std::filesystem::path& file,
                                               const checkpoint::ManifestFile& raw,
                                               const std::optional<Reference>& reference,
                                               const std::filesystem::path& out, uint64_t max_bytes,
                                               int threads, std::stop_token stop = {});

/// The inverse of encode(): writes and syncs `out`, which then matches `raw`. `reference` is the
/// reference of encode(). Returns the manifest entry of `out`. An error leaves no `out`. Throws
/// kCorrupt (file, offset, problem) for a damaged `packed` or reference, also when only the SHA-256
/// of the result shows the damage; kRejected when `packed` belongs to another file or reference;
/// kIo.
checkpoint::ManifestFile decode(const std::filesystem::path& packed,
                                const checkpoint::ManifestFile& raw,
                                const std::optional<Reference>& reference,
                                const std::filesystem::path& out, int threads);

}  // namespace xffl::pack
