#include "xffl/checkpoint/manifest.h"

#include <algorithm>

#include "plain_name.h"
#include "regular_file.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/base/log.h"
#include "xffl/base/sha256.h"

namespace xffl::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr int kPlainVersion = 1;   // without chunks: every release reads it
constexpr int kChunksVersion = 2;  // written only when a file has more than one chunk
constexpr size_t kMaxFiles = 4096;
constexpr uint64_t kMaxFileBytes = uint64_t{1} << 50;
constexpr uint64_t kMinChunkBytes = 4096;

bool is_manifest_file_name(const std::string& name) {
  return is_plain_file_name(name) && name != kManifestName;
}

// How many digests a file of several chunks has, beside its own.
uint64_t num_prefixes(uint64_t size_bytes, uint64_t chunk_bytes) {
  return size_bytes == 0 ? 0 : (size_bytes - 1) / chunk_bytes;
}

void parse_prefixes(JsonObject& object, uint64_t chunk_bytes, ManifestFile& file) {
  if (!object.has("prefix_sha256")) return;
  file.prefix_sha256 = object.strings("prefix_sha256");
  const uint64_t expected = num_prefixes(file.size_bytes, chunk_bytes);
  if (file.prefix_sha256.size() != expected)
    object.fail("prefix_sha256", "should have " + std::to_string(expected) +
                                     " items, one for each chunk of " +
                                     std::to_string(chunk_bytes) + " bytes but the last, found " +
                                     std::to_string(file.prefix_sha256.size()));
  if (!std::all_of(file.prefix_sha256.begin(), file.prefix_sha256.end(), is_sha256_hex))
    object.fail("prefix_sha256", "should be of 64 lower-case hexadecimal digits each");
}

ManifestFile parse_file(const Json& item, const std::string& where, uint64_t chunk_bytes) {
  JsonObject object(item, where);
  ManifestFile file;
  file.name = object.string("name");
  if (!is_manifest_file_name(file.name)) {
    object.fail("name",
                "should be 1 to 200 characters of A-Z a-z 0-9 . _ -, not starting with '.' and "
                "not manifest.json, found '" +
                    log::printable(file.name, 300) + "'");
  }
  file.size_bytes = static_cast<uint64_t>(
      object.integer("size_bytes", 0, static_cast<int64_t>(kMaxFileBytes) - 1));
  file.sha256 = object.string("sha256");
  if (!is_sha256_hex(file.sha256)) {
    object.fail("sha256", "should be 64 lower-case hexadecimal digits");
  }
  if (chunk_bytes > 0) parse_prefixes(object, chunk_bytes, file);
  object.refuse_other_keys();
  return file;
}

bool has_chunks(const Manifest& manifest) {
  return std::any_of(manifest.files.begin(), manifest.files.end(),
                     [](const ManifestFile& file) { return !file.prefix_sha256.empty(); });
}

}  // namespace

uint64_t Manifest::total_bytes() const {
  uint64_t total = 0;
  for (const ManifestFile& file : files) total += file.size_bytes;
  return total;
}

std::string Manifest::root_sha256() const {
  Sha256 hash;
  for (const ManifestFile& file : files) {
    hash.update(file.sha256 + "  " + std::to_string(file.size_bytes) + "  " + file.name + "\n");
  }
  return hash.hex();
}

Manifest parse_manifest(std::string_view json, std::string_view origin) {
  const Json document = parse_json(json, origin, {.max_bytes = kMaxManifestBytes, .max_depth = 4});
  JsonObject object(document, std::string(origin));
  Manifest manifest;
  const bool chunks = object.integer("version", kPlainVersion, kChunksVersion) == kChunksVersion;
  if (chunks)
    manifest.chunk_bytes = static_cast<uint64_t>(
        object.integer("chunk_bytes", kMinChunkBytes, static_cast<int64_t>(kChunkBytes)));
  const Json& files = object.at("files");
  if (!files.is_array())
    object.fail("files", std::string("should be a list, found ") + files.type_name());
  if (files.size() > kMaxFiles) {
    object.fail("files", "should have at most " + std::to_string(kMaxFiles) + " items, found " +
                             std::to_string(files.size()));
  }
  object.refuse_other_keys();
  for (const Json& item : files) {
    const std::string where =
        std::string(origin) + ": files[" + std::to_string(manifest.files.size()) + "]";
    ManifestFile file = parse_file(item, where, chunks ? manifest.chunk_bytes : 0);
    if (!manifest.files.empty() && file.name <= manifest.files.back().name) {
      throw Error(ErrorKind::kCorrupt, where + ": '" + file.name + "' follows '" +
                                           manifest.files.back().name +
                                           "'; names should be sorted, each there once");
    }
    manifest.files.push_back(std::move(file));
  }
  return manifest;
}

std::string format_manifest(const Manifest& manifest) {
  Json files = Json::array();
  for (const ManifestFile& file : manifest.files) {
    Json item{{"name", file.name}, {"size_bytes", file.size_bytes}, {"sha256", file.sha256}};
    if (!file.prefix_sha256.empty()) item["prefix_sha256"] = file.prefix_sha256;
    files.push_back(std::move(item));
  }
  const bool chunks = has_chunks(manifest);
  Json document{{"version", chunks ? kChunksVersion : kPlainVersion}};
  if (chunks) document["chunk_bytes"] = manifest.chunk_bytes;
  document["files"] = std::move(files);
  std::string text = document.dump(2) + "\n";
  parse_manifest(text, kManifestName);
  return text;
}

Manifest read_manifest(const fs::path& folder) {
  const fs::path path = folder / kManifestName;
  uint64_t size_bytes = 0;
  open_regular(path, size_bytes);
  return parse_manifest(read_file(path, kMaxManifestBytes), path.string());
}

Manifest write_manifest(const fs::path& folder, const std::vector<ManifestFile>& known) {
  Manifest manifest = make_manifest(folder, {}, kChunkBytes, known);
  write_file_atomic(folder / kManifestName, format_manifest(manifest));
  return manifest;
}

}  // namespace xffl::checkpoint
