// manifest.json: names, sizes and SHA-256 of the files of a folder, made by whoever produced them.
//
// The root hash, SHA-256 over the sorted lines "<sha256>  <size>  <name>\n", names the folder's
// content: it is what the journal, job.json and report.json quote. A file of several chunks also
// has the digests of its running SHA-256 at the end of each chunk but the last: a reader that goes
// front to back sees which chunk is damaged, and neither side hashes a byte twice. They are no part
// of the root hash: a wrong one costs a transfer, never correctness. A manifest from elsewhere is
// hostile: names are plain file names [A-Za-z0-9._-]{1,200} not starting with '.', at most 4,096 of
// them, sizes below 2^50.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "xffl/base/sha256.h"

namespace xffl::checkpoint {

inline constexpr std::string_view kManifestName = "manifest.json";
inline constexpr uint64_t kMaxManifestBytes = 4u << 20;
inline constexpr uint64_t kChunkBytes = 64u << 20;

struct ManifestFile {
  std::string name;
  uint64_t size_bytes = 0;
  std::string sha256;
  // SHA-256 of the first 1, 2, ... chunks, without the whole file's; empty when nobody made them.
  std::vector<std::string> prefix_sha256{};

  /// The same name and content.
  bool operator==(const ManifestFile& other) const {
    return name == other.name && size_bytes == other.size_bytes && sha256 == other.sha256;
  }
};

struct Manifest {
  std::vector<ManifestFile> files;  // sorted by name
  uint64_t chunk_bytes = kChunkBytes;

  /// The same files; who knows the chunks does not matter.
  bool operator==(const Manifest& other) const { return files == other.files; }
  uint64_t total_bytes() const;
  std::string root_sha256() const;
};

/// The hashes of a file whose bytes come by front to back.
class FileHash {
 public:
  explicit FileHash(uint64_t chunk_bytes = kChunkBytes) : chunk_bytes_(chunk_bytes) {}

  void update(std::span<const std::byte> bytes);
  /// What the manifest says of the bytes so far, under `name`; the object is used up.
  ManifestFile finish(std::string name);

 private:
  uint64_t chunk_bytes_;
  uint64_t size_bytes_ = 0;
  Sha256 hash_;
  std::vector<std::string> prefix_sha256_;
};

/// Hashes every regular file directly in `folder` except manifest.json, several at a time;
/// sub-folders are refused (kRejected). `on_bytes`, if set, is called with the bytes hashed so far,
/// by one thread at a time. `known` files, hashed when they were written, by chunks of
/// `chunk_bytes`, are not read again: they only have to be there, as long as they were (else
/// kRejected).
Manifest make_manifest(const std::filesystem::path& folder,
                       const std::function<void(uint64_t)>& on_bytes = {},
                       uint64_t chunk_bytes = kChunkBytes,
                       const std::vector<ManifestFile>& known = {});
Manifest parse_manifest(std::string_view json, std::string_view origin);
std::string format_manifest(const Manifest& manifest);
Manifest read_manifest(const std::filesystem::path& folder);
/// make_manifest, then manifest.json by atomic rename.
Manifest write_manifest(const std::filesystem::path& folder,
                        const std::vector<ManifestFile>& known = {});

/// Throws kRejected unless `folder` holds exactly the manifest's files (and manifest.json), with
/// its sizes and hashes.
void verify_folder(const std::filesystem::path& folder, const Manifest& manifest);

}  // namespace xffl::checkpoint
