// How it works: one file is hashed front to back, as SHA-256 must; several files go side by side.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <exception>
#include <mutex>
#include <set>
#include <thread>

#include "list_folder.h"
#include "plain_name.h"
#include "regular_file.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/checkpoint/manifest.h"

namespace xffl::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr size_t kMaxNames = 4097;  // of a manifest, and its own
constexpr size_t kMaxThreads = 8;

[[noreturn]] void reject(const fs::path& path, const std::string& problem) {
  throw Error(ErrorKind::kRejected, path.string() + ": " + problem);
}

/// The hashes of exactly `size_bytes`; a file that grows or shrinks meanwhile is refused.
ManifestFile hash_file(const fs::path& path, uint64_t chunk_bytes,
                       const std::function<void(uint64_t)>& on_piece) {
  uint64_t size_bytes = 0;
  const UniqueFd fd = open_regular(path, size_bytes);
  FileHash hash(chunk_bytes);
  std::vector<std::byte> buffer(1u << 20);
  uint64_t total = 0;
  for (;;) {
    const ssize_t count = ::read(fd.get(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw system_error("read " + path.string(), errno);
    if (count == 0) break;
    total += static_cast<uint64_t>(count);
    if (total > size_bytes) break;
    hash.update(std::span(buffer).first(static_cast<size_t>(count)));
    on_piece(static_cast<uint64_t>(count));
  }
  if (total != size_bytes) reject(path, "changed while it was read");
  return hash.finish(path.filename().string());
}

/// Calls `body(i)` for 0 <= i < count on a few threads; the first error ends it.
void for_each_index(size_t count, const std::function<void(size_t)>& body) {
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr problem;
  const auto work = [&] {
    for (size_t i = next++; i < count; i = next++) {
      try {
        body(i);
      } catch (...) {  // the top of a thread: it goes on in the caller's
        const std::lock_guard lock(mutex);
        if (!problem) problem = std::current_exception();
        next = count;
      }
    }
  };
  {
    const size_t cores = std::max(1u, std::thread::hardware_concurrency());
    std::vector<std::jthread> helpers;
    for (size_t i = 1; i < std::min({count, cores, kMaxThreads}); ++i) helpers.emplace_back(work);
    work();
  }
  if (problem) std::rethrow_exception(problem);
}

/// The names in `folder` without manifest.json.
std::set<std::string> list_files(const fs::path& folder) {
  std::set<std::string> names = list_folder(folder, kMaxNames);
  names.erase(std::string(kManifestName));
  return names;
}

void verify_size(const fs::path& folder, const ManifestFile& file) {
  uint64_t size_bytes = 0;
  open_regular(folder / file.name, size_bytes);
  if (size_bytes != file.size_bytes)
    reject(folder / file.name, "expected " + std::to_string(file.size_bytes) + " bytes, found " +
                                   std::to_string(size_bytes));
}

}  // namespace

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

void FileHash::update(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    // The digest at a chunk's end is taken when more follows: the last one is the file's own.
    if (size_bytes_ > 0 && size_bytes_ % chunk_bytes_ == 0)
      prefix_sha256_.push_back(Sha256(hash_).hex());
    const uint64_t left = chunk_bytes_ - size_bytes_ % chunk_bytes_;
    const auto piece = bytes.first(std::min<uint64_t>(left, bytes.size()));
    hash_.update(piece);
    size_bytes_ += piece.size();
    bytes = bytes.subspan(piece.size());
  }
}

ManifestFile FileHash::finish(std::string name) {
  return {std::move(name), size_bytes_, hash_.hex(), std::move(prefix_sha256_)};
}

Manifest make_manifest(const fs::path& folder, const std::function<void(uint64_t)>& on_bytes,
                       uint64_t chunk_bytes, const std::vector<ManifestFile>& known) {
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
  std::mutex mutex;
  uint64_t hashed = 0;
  const auto on_piece = [&](uint64_t count) {
    if (!on_bytes) return;
    const std::lock_guard lock(mutex);
    hashed += count;
    on_bytes(hashed);
  };
  for_each_index(sorted.size(), [&](size_t i) {
    manifest.files[i] = hash_file(folder / sorted[i], chunk_bytes, on_piece);
  });
  manifest.files.insert(manifest.files.end(), known.begin(), known.end());
  std::sort(manifest.files.begin(), manifest.files.end(),
            [](const ManifestFile& a, const ManifestFile& b) { return a.name < b.name; });
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
    if (!expected.contains(name))
      reject(folder, "'" + log::printable(name, 300) + "' is not in the manifest");
  }
  for (const ManifestFile& file : manifest.files) verify_size(folder, file);
  for_each_index(manifest.files.size(), [&](size_t i) {
    const ManifestFile& file = manifest.files[i];
    const ManifestFile found = hash_file(folder / file.name, kChunkBytes, [](uint64_t) {});
    if (!(found == file))
      reject(folder / file.name, "expected SHA-256 " + file.sha256 + ", found " + found.sha256);
  });
}

}  // namespace xffl::checkpoint
