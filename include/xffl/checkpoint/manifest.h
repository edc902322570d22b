// manifest.json: names, sizes and SHA-256 of a folder's files, written by their producer.
//
// The root hash, SHA-256 over the sorted lines "<sha256>  <size>  <name>\n", identifies the
// folder's content; the journal, job.json and report.json quote it. A file of several chunks also
// has prefix hashes: the running SHA-256 at the end of each chunk but the last. A sequential reader
// detects the damaged chunk, and neither side hashes a byte twice. The root hash does not cover the
// prefix hashes: a wrong prefix hash costs a transfer, never correctness. A received manifest is
// hostile: the parser accepts only plain file names [A-Za-z0-9._-]{1,200} not starting with '.', at
// most 4,096 files, sizes below 2^50.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "xffl/base/fast_hash.h"
#include "xffl/base/sha256.h"

namespace xffl::checkpoint {

inline constexpr std::string_view kManifestName = "manifest.json";
inline constexpr uint64_t kMaxManifestBytes = 4u << 20;
inline constexpr uint64_t kChunkBytes = 64u << 20;
inline constexpr uint64_t kHashBlockBytes = 256u << 10;

struct ManifestFile {
  std::string name;
  uint64_t size_bytes = 0;
  std::string sha256;
  // SHA-256 of the first 1, 2, ... chunks, without the whole file; empty when not computed.
  std::vector<std::string> prefix_sha256{};
  // XXH3 of each block of kHashBlockBytes; empty when not computed. Not in manifest.json, but in
  // "<folder>.blocks" (block_hashes.h).
  std::vector<uint64_t> block_xxh3{};

  /// Compares name and content, not the hashes of parts.
  bool operator==(const ManifestFile& other) const {
    return name == other.name && size_bytes == other.size_bytes && sha256 == other.sha256;
  }
};

struct Manifest {
  std::vector<ManifestFile> files;  // sorted by name
  uint64_t chunk_bytes = kChunkBytes;

  /// Compares the files, not the chunks.
  bool operator==(const Manifest& other) const { return files == other.files; }
  /// The file `name`; null when the manifest has no such file.
  const ManifestFile* find(std::string_view name) const;
  uint64_t total_bytes() const;
  std::string root_sha256() const;
};

/// The block hashes of a file, from front to back.
class BlockHash {
 public:
  void update(std::span<const std::byte> bytes);
  /// The hashes of the blocks so far, the last one maybe short. Call finish() once, last.
  std::vector<uint64_t> finish();

  /// A position to return to.
  struct Mark {
    uint64_t size_bytes = 0;
    FastHash block{};
  };
  Mark mark() const { return {size_bytes_, block_}; }
  /// Forgets the bytes after `mark`.
  void rewind(const Mark& mark);

 private:
  uint64_t size_bytes_ = 0;
  FastHash block_;
  std::vector<uint64_t> blocks_;
};

/// Hashes a file from front to back.
class FileHash {
 public:
  explicit FileHash(uint64_t chunk_bytes = kChunkBytes) : chunk_bytes_(chunk_bytes) {}

  void update(std::span<const std::byte> bytes);
  /// Returns the manifest entry `name` for the bytes so far. Call finish() once, last.
  ManifestFile finish(std::string name);

 private:
  uint64_t chunk_bytes_;
  uint64_t size_bytes_ = 0;
  Sha256 hash_;
  std::vector<std::string> prefix_sha256_;
  BlockHash blocks_;
};

/// Hashes one regular file. Throws kRejected when the file grows or shrinks meanwhile,
/// UnreadableFile for a bad sector.
ManifestFile hash_file(const std::filesystem::path& path, uint64_t chunk_bytes = kChunkBytes);

/// Hashes every regular file directly in `folder` except manifest.json, several files in parallel.
/// Throws kRejected for a subfolder. For the files in `known`, takes the hashes that their writer
/// computed with `chunk_bytes`, without reading the files. Throws kRejected when a known file is
/// missing or has another size.
Manifest make_manifest(const std::filesystem::path& folder, uint64_t chunk_bytes = kChunkBytes,
                       const std::vector<ManifestFile>& known = {});
Manifest parse_manifest(std::string_view json, std::string_view origin);
std::string format_manifest(const Manifest& manifest);
Manifest read_manifest(const std::filesystem::path& folder);
/// Calls make_manifest(), then writes manifest.json atomically.
Manifest write_manifest(const std::filesystem::path& folder,
                        const std::vector<ManifestFile>& known = {});

/// The name of the part file of a transfer that has not ended: ".a.part" for "a". A manifest's file
/// names never start with '.', so no part name equals a file name.
inline std::string part_name(const std::string& name) { return "." + name + ".part"; }

/// Throws kRejected unless `folder` holds exactly the manifest's files (and manifest.json) with
/// their sizes and hashes. Files with a part_name() of these names are no damage: a coordinator
/// that was frozen during its push may leave them in a folder that its successor has completed.
void verify_folder(const std::filesystem::path& folder, const Manifest& manifest);

}  // namespace xffl::checkpoint
