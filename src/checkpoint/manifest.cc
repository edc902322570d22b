#include "xffl/checkpoint/manifest.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>

#include "list_folder.h"
#include "plain_name.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/base/log.h"
#include "xffl/base/sha256.h"

namespace xffl::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr int kManifestVersion = 1;
constexpr size_t kMaxFiles = 4096;
constexpr uint64_t kMaxFileBytes = uint64_t{1} << 50;
constexpr uint64_t kMaxManifestBytes = 2u << 20;

[[noreturn]] void reject(const fs::path& path, const std::string& problem) {
  throw Error(ErrorKind::kRejected, path.string() + ": " + problem);
}

/// Opens a regular file; a link, a pipe or a device is refused without being waited for.
UniqueFd open_regular(const fs::path& path, uint64_t& size_bytes) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) throw system_error("stat " + path.string(), errno);
  if (!S_ISREG(info.st_mode)) reject(path, "expected a regular file (no link, folder or device)");
  UniqueFd fd = open_file(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
  if (::fstat(fd.get(), &info) != 0) throw system_error("stat " + path.string(), errno);
  if (!S_ISREG(info.st_mode)) reject(path, "expected a regular file (no link, folder or device)");
  size_bytes = static_cast<uint64_t>(info.st_size);
  return fd;
}

/// SHA-256 of exactly `size_bytes`; a file that grows or shrinks meanwhile is refused.
std::string hash_file(int fd, const fs::path& path, uint64_t size_bytes,
                      const std::function<void(uint64_t)>& on_piece) {
  Sha256 hash;
  std::vector<std::byte> buffer(1u << 20);
  uint64_t total = 0;
  for (;;) {
    const ssize_t count = ::read(fd, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw system_error("read " + path.string(), errno);
    if (count == 0) break;
    total += static_cast<uint64_t>(count);
    if (total > size_bytes) break;
    hash.update(std::span(buffer).first(static_cast<size_t>(count)));
    on_piece(static_cast<uint64_t>(count));
  }
  if (total != size_bytes) reject(path, "changed while it was read");
  return hash.hex();
}

/// The names in `folder` without manifest.json.
std::set<std::string> list_files(const fs::path& folder) {
  std::set<std::string> names = list_folder(folder, kMaxFiles + 1);
  names.erase(std::string(kManifestName));
  return names;
}

bool is_manifest_file_name(const std::string& name) {
  return is_plain_file_name(name) && name != kManifestName;
}

ManifestFile parse_file(const Json& item, const std::string& where) {
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
  object.refuse_other_keys();
  return file;
}

void verify_file(const fs::path& folder, const ManifestFile& file) {
  const fs::path path = folder / file.name;
  uint64_t size_bytes = 0;
  const UniqueFd fd = open_regular(path, size_bytes);
  if (size_bytes != file.size_bytes) {
    reject(path, "expected " + std::to_string(file.size_bytes) + " bytes, found " +
                     std::to_string(size_bytes));
  }
  const std::string sha256 = hash_file(fd.get(), path, size_bytes, [](uint64_t) {});
  if (sha256 != file.sha256) {
    reject(path, "expected SHA-256 " + file.sha256 + ", found " + sha256);
  }
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

Manifest make_manifest(const fs::path& folder, const std::function<void(uint64_t)>& on_bytes) {
  Manifest manifest;
  uint64_t hashed = 0;
  const auto on_piece = [&](uint64_t count) {
    hashed += count;
    if (on_bytes) on_bytes(hashed);
  };
  for (const std::string& name : list_files(folder)) {
    if (!is_manifest_file_name(name)) {
      reject(folder, "the file name '" + log::printable(name, 300) +
                         "' is not 1 to 200 characters of A-Z a-z 0-9 . _ - without a leading '.'");
    }
    ManifestFile file{name, 0, ""};
    const UniqueFd fd = open_regular(folder / name, file.size_bytes);
    file.sha256 = hash_file(fd.get(), folder / name, file.size_bytes, on_piece);
    manifest.files.push_back(std::move(file));
  }
  return manifest;
}

Manifest parse_manifest(std::string_view json, std::string_view origin) {
  const Json document = parse_json(json, origin, {.max_bytes = kMaxManifestBytes, .max_depth = 3});
  JsonObject object(document, std::string(origin));
  object.integer("version", kManifestVersion, kManifestVersion);
  const Json& files = object.at("files");
  if (!files.is_array())
    object.fail("files", std::string("should be a list, found ") + files.type_name());
  if (files.size() > kMaxFiles) {
    object.fail("files", "should have at most " + std::to_string(kMaxFiles) + " items, found " +
                             std::to_string(files.size()));
  }
  object.refuse_other_keys();
  Manifest manifest;
  for (const Json& item : files) {
    const std::string where =
        std::string(origin) + ": files[" + std::to_string(manifest.files.size()) + "]";
    ManifestFile file = parse_file(item, where);
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
    files.push_back(
        Json{{"name", file.name}, {"size_bytes", file.size_bytes}, {"sha256", file.sha256}});
  }
  std::string text =
      Json{{"version", kManifestVersion}, {"files", std::move(files)}}.dump(2) + "\n";
  parse_manifest(text, kManifestName);
  return text;
}

Manifest read_manifest(const fs::path& folder) {
  const fs::path path = folder / kManifestName;
  uint64_t size_bytes = 0;
  open_regular(path, size_bytes);
  return parse_manifest(read_file(path, kMaxManifestBytes), path.string());
}

Manifest write_manifest(const fs::path& folder) {
  Manifest manifest = make_manifest(folder);
  write_file_atomic(folder / kManifestName, format_manifest(manifest));
  return manifest;
}

void verify_folder(const fs::path& folder, const Manifest& manifest) {
  const std::set<std::string> names = list_files(folder);
  std::set<std::string> expected;
  for (const ManifestFile& file : manifest.files) {
    if (!names.contains(file.name))
      reject(folder, "the manifest's file '" + file.name + "' is missing");
    expected.insert(file.name);
  }
  for (const std::string& name : names) {
    if (!expected.contains(name)) {
      reject(folder, "'" + log::printable(name, 300) + "' is not in the manifest");
    }
  }
  for (const ManifestFile& file : manifest.files) verify_file(folder, file);
}

}  // namespace xffl::checkpoint
