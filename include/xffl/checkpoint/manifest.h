// manifest.json: names, sizes and SHA-256 of the files of a folder, made by whoever produced them.
//
// The root hash, SHA-256 over the sorted lines "<sha256>  <size>  <name>\n", names the folder's
// content: it is what the journal, job.json and report.json quote. A manifest from elsewhere is
// hostile: names are plain file names [A-Za-z0-9._-]{1,200} not starting with '.', at most 4,096 of
// them, sizes below 2^50.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace xffl::checkpoint {

inline constexpr std::string_view kManifestName = "manifest.json";

struct ManifestFile {
  std::string name;
  uint64_t size_bytes = 0;
  std::string sha256;
  bool operator==(const ManifestFile&) const = default;
};

struct Manifest {
  std::vector<ManifestFile> files;  // sorted by name
  bool operator==(const Manifest&) const = default;

  uint64_t total_bytes() const;
  std::string root_sha256() const;
};

/// Hashes every regular file directly in `folder` except manifest.json; sub-folders are refused
/// (kRejected). `on_bytes`, if set, is called with the bytes hashed so far.
Manifest make_manifest(const std::filesystem::path& folder,
                       const std::function<void(uint64_t)>& on_bytes = {});
Manifest parse_manifest(std::string_view json, std::string_view origin);
std::string format_manifest(const Manifest& manifest);
Manifest read_manifest(const std::filesystem::path& folder);
/// make_manifest, then manifest.json by atomic rename.
Manifest write_manifest(const std::filesystem::path& folder);

/// Throws kRejected unless `folder` holds exactly the manifest's files (and manifest.json), with
/// its sizes and hashes.
void verify_folder(const std::filesystem::path& folder, const Manifest& manifest);

}  // namespace xffl::checkpoint
