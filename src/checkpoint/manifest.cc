#include "xffl/checkpoint/manifest.h"

#include <algorithm>
#include <set>

#include "file_names.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/base/log.h"
#include "xffl/base/resources.h"
#include "xffl/base/sha256.h"
#include "xffl/base/threads.h"
#include "xffl/base/utf8.h"

namespace xffl::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr int kPlainVersion = 1;   // without chunks; every release reads version 1
constexpr int kChunksVersion = 2;  // written only when a file has more than one chunk
constexpr size_t kMaxFiles = 4096;
constexpr uint64_t kMaxFileBytes = uint64_t{1} << 50;
constexpr uint64_t kMinChunkBytes = 4096;

bool is_manifest_file_name(const std::string& name) {
  return is_plain_file_name(name) && name != kManifestName;
}

// The number of prefix hashes of a file.
uint64_t num_prefixes(uint64_t size_bytes, uint64_t chunk_bytes) {
  return size_bytes == 0 ? 0 : (size_bytes - 1) / chunk_bytes;
}

void parse_prefixes(JsonObject& object, uint64_t chunk_bytes, ManifestFile& file) {
  if (!object.json().contains("prefix_sha256")) return;
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
  return file;
}

bool has_chunks(const Manifest& manifest) {
  return std::any_of(manifest.files.begin(), manifest.files.end(),
                     [](const ManifestFile& file) { return !file.prefix_sha256.empty(); });
}

constexpr size_t kMaxEntries = kMaxFiles + 1;  // with manifest.json
constexpr size_t kMaxThreads = 8;

[[noreturn]] void reject(const fs::path& path, const std::string& problem) {
  throw Error(ErrorKind::kRejected, path.string() + ": " + problem);
}

size_t num_threads() { return std::min(static_cast<size_t>(available_cpus()), kMaxThreads); }

/// The names in `folder` without manifest.json.
std::set<std::string> list_files(const fs::path& folder) {
  std::set<std::string> names = list_folder(folder, kMaxEntries);
  names.erase(std::string(kManifestName));
  return names;
}

void verify_size(const fs::path& folder, const ManifestFile& file) {
  const uint64_t size_bytes = open_regular(folder / file.name).size_bytes;
  if (size_bytes != file.size_bytes)
    reject(folder / file.name, "expected " + std::to_string(file.size_bytes) + " bytes, found " +
                                   std::to_string(size_bytes));
}

}  // namespace

const ManifestFile* Manifest::find(std::string_view name) const {
  const auto found = std::find_if(files.begin(), files.end(),
                                  [&](const ManifestFile& file) { return file.name == name; });
  return found == files.end() ? nullptr : &*found;
}

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
  const bool chunks = object.version(kPlainVersion, kChunksVersion) == kChunksVersion;
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
  std::set<std::string> folded = {std::string(kManifestName)};  // for file systems that fold case
  for (const Json& item : files) {
    const std::string where =
        std::string(origin) + ": files[" + std::to_string(manifest.files.size()) + "]";
    ManifestFile file = parse_file(item, where, chunks ? manifest.chunk_bytes : 0);
    if (!manifest.files.empty() && file.name <= manifest.files.back().name) {
      throw Error(ErrorKind::kCorrupt, where + ": '" + file.name + "' follows '" +
                                           manifest.files.back().name +
                                           "'; names should be sorted and unique");
    }
    if (!folded.insert(ascii_lower_case(file.name)).second)
      throw Error(ErrorKind::kCorrupt,
                  where + ": another name differs from '" + file.name + "' only in case");
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

void BlockHash::update(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const uint64_t left = kHashBlockBytes - size_bytes_ % kHashBlockBytes;
    const auto piece = bytes.first(std::min<uint64_t>(left, bytes.size()));
    size_bytes_ += piece.size();
    bytes = bytes.subspan(piece.size());
    if (piece.size() == kHashBlockBytes) {
      blocks_.push_back(fast_hash(piece));
      continue;
    }
    block_.update(piece);
    if (size_bytes_ % kHashBlockBytes > 0) continue;
    blocks_.push_back(block_.value());
    block_.reset();
  }
}

std::vector<uint64_t> BlockHash::finish() {
  if (size_bytes_ % kHashBlockBytes > 0) blocks_.push_back(block_.value());
  return std::move(blocks_);
}

void BlockHash::rewind(const Mark& mark) {
  size_bytes_ = mark.size_bytes;
  block_ = mark.block;
  blocks_.resize(mark.size_bytes / kHashBlockBytes);
}

void FileHash::update(std::span<const std::byte> bytes) {
  blocks_.update(bytes);
  while (!bytes.empty()) {
    // update() takes a chunk's prefix hash when the next chunk begins: the last chunk has no prefix
    // hash.
    if (size_bytes_ > 0 && size_bytes_ % chunk_bytes_ == 0)
      prefix_sha256_.push_back(Sha256(hash_).hex());
    const uint64_t left = chunk_bytes_ - size_bytes_ % chunk_bytes_;
    const auto piece = bytes.first(std::min<uint64_t>(left, bytes.size()));
    hash_.update(piece);
    size_bytes_ += piece.size();
    bytes = bytes.subspan(piece.size());
  }
}

ManifestFile hash_file(const fs::path& path, uint64_t chunk_bytes) {
  const RegularFile file = open_regular(path);
  FileHash hash(chunk_bytes);
  std::vector<std::byte> buffer(1u << 20);
  uint64_t total = 0;
  while (const size_t count = read_at(file.fd.get(), total, buffer, path)) {
    total += count;
    if (total > file.size_bytes) break;
    hash.update(std::span(buffer).first(count));
  }
  if (total != file.size_bytes) reject(path, "changed while it was read");
  return hash.finish(path.filename().string());
}

ManifestFile FileHash::finish(std::string name) {
  return {std::move(name), size_bytes_, hash_.hex(), std::move(prefix_sha256_), blocks_.finish()};
}

Manifest make_manifest(const fs::path& folder, uint64_t chunk_bytes,
                       const std::vector<ManifestFile>& known) {
  std::set<std::string> names = list_files(folder);
  for (const ManifestFile& file : known) {
    if (names.erase(file.name) == 0) reject(folder, "the file '" + file.name + "' is missing");
    verify_size(folder, file);
  }
  for (const std::string& name : names) {
    if (!is_plain_file_name(name))
      reject(folder, "the file name '" + log::printable(name, 300) +
                         "' is not 1 to 200 characters of A-Z a-z 0-9 . _ - without a leading '.'");
  }
  const std::vector<std::string> sorted(names.begin(), names.end());
  Manifest manifest{std::vector<ManifestFile>(sorted.size()), chunk_bytes};
  parallel_for(sorted.size(), num_threads(),
               [&](size_t i) { manifest.files[i] = hash_file(folder / sorted[i], chunk_bytes); });
  manifest.files.insert(manifest.files.end(), known.begin(), known.end());
  std::sort(manifest.files.begin(), manifest.files.end(),
            [](const ManifestFile& a, const ManifestFile& b) { return a.name < b.name; });
  return manifest;
}

void verify_folder(const fs::path& folder, const Manifest& manifest) {
  const std::set<std::string> names = list_files(folder);
  std::set<std::string> expected{part_name(std::string(kManifestName))};
  for (const ManifestFile& file : manifest.files) {
    if (!names.contains(file.name))
      reject(folder, "the manifest's file '" + file.name + "' is missing");
    expected.insert({file.name, part_name(file.name)});
  }
  for (const std::string& name : names) {
    if (!expected.contains(name))
      reject(folder, "'" + log::printable(name, 300) + "' is not in the manifest");
  }
  for (const ManifestFile& file : manifest.files) verify_size(folder, file);
  parallel_for(manifest.files.size(), num_threads(), [&](size_t i) {
    const ManifestFile& file = manifest.files[i];
    const ManifestFile found = hash_file(folder / file.name, kChunkBytes);
    if (!(found == file))
      reject(folder / file.name, "expected SHA-256 " + file.sha256 + ", found " + found.sha256);
  });
}

Manifest read_manifest(const fs::path& folder) {
  const fs::path path = folder / kManifestName;
  open_regular(path);  // throws for a symbolic link, pipe or device
  return parse_manifest(read_file(path, kMaxManifestBytes), path.string());
}

Manifest write_manifest(const fs::path& folder, const std::vector<ManifestFile>& known) {
  Manifest manifest = make_manifest(folder, kChunkBytes, known);
  write_file_atomic(folder / kManifestName, format_manifest(manifest));
  return manifest;
}

}  // namespace xffl::checkpoint
