#include "xffl/checkpoint/block_hashes.h"

#include <algorithm>
#include <cstring>

#include "xffl/base/error.h"
#include "xffl/base/fast_hash.h"
#include "xffl/base/file.h"

namespace xffl::checkpoint {
namespace {

namespace fs = std::filesystem;

// The file: the magic, the size of the manifest, the manifest, the hashes of all blocks in the
// order of the manifest, the hash of all before; numbers have 8 bytes, little-endian.
constexpr std::string_view kMagic = "xffl blocks 0001";
constexpr uint64_t kMaxBytes = 1u << 30;
constexpr size_t kReadBytes = 1u << 20;

uint64_t num_blocks(uint64_t size_bytes) {
  return (size_bytes + kHashBlockBytes - 1) / kHashBlockBytes;
}

void append_number(std::string& text, uint64_t number) {
  char bytes[sizeof number];
  std::memcpy(bytes, &number, sizeof number);
  text.append(bytes, sizeof bytes);
}

// Takes the next number; false at the end of the text.
bool take_number(std::string_view& text, uint64_t& number) {
  if (text.size() < sizeof number) return false;
  std::memcpy(&number, text.data(), sizeof number);
  text.remove_prefix(sizeof number);
  return true;
}

uint64_t hash_of(std::string_view text) { return fast_hash(std::as_bytes(std::span(text))); }

std::optional<Manifest> parse(std::string_view text, const std::string& origin) {
  if (!text.starts_with(kMagic) || text.size() < kMagic.size() + 16) return std::nullopt;
  std::string_view end = text.substr(text.size() - 8);
  text.remove_suffix(8);
  uint64_t hash = 0, size = 0;
  take_number(end, hash);
  if (hash != hash_of(text)) return std::nullopt;
  text.remove_prefix(kMagic.size());
  if (!take_number(text, size) || size > text.size()) return std::nullopt;
  Manifest manifest = parse_manifest(text.substr(0, size), origin);
  text.remove_prefix(size);
  for (ManifestFile& file : manifest.files)
    for (uint64_t block = 0; block < num_blocks(file.size_bytes); ++block)
      if (!take_number(text, file.block_xxh3.emplace_back())) return std::nullopt;
  if (!text.empty()) return std::nullopt;
  return manifest;
}

bool has_blocks(const Manifest& manifest) {
  return std::all_of(manifest.files.begin(), manifest.files.end(), [](const ManifestFile& file) {
    return file.block_xxh3.size() == num_blocks(file.size_bytes);
  });
}

[[noreturn]] void fail_damaged(const fs::path& path, const std::string& problem) {
  throw Error(ErrorKind::kCorrupt, path.string() + " is damaged on this machine: " + problem);
}

void check_size(const fs::path& path, const ManifestFile& file, uint64_t found) {
  if (found != file.size_bytes)
    fail_damaged(path, "expected " + std::to_string(file.size_bytes) + " bytes, found " +
                           std::to_string(found));
}

std::span<const std::byte> block_of(std::span<const std::byte> bytes, uint64_t index) {
  const uint64_t at = index * kHashBlockBytes;
  return bytes.subspan(at, std::min<uint64_t>(kHashBlockBytes, bytes.size() - at));
}

// A read error may pass: the third one in a row counts.
Manifest hash_folder(const fs::path& folder) {
  constexpr int kTries = 3;
  for (int tries = 1;; ++tries) try {
      return make_manifest(folder);
    } catch (const UnreadableFile&) {
      if (tries == kTries) throw;
    }
}

// The text of manifest.json; empty when the file is unreadable.
std::string manifest_text(const fs::path& folder) {
  try {
    return read_file(folder / kManifestName, kMaxManifestBytes);
  } catch (const Error&) {
    return {};
  }
}

// Names the file of `folder` that differs from the folder's manifest.json, if that one is intact.
[[noreturn]] void fail_by_root(const fs::path& folder, const std::string& root_sha256,
                               const Manifest& found) {
  std::optional<Manifest> expected;
  try {
    expected = read_manifest(folder);
  } catch (const Error&) {  // the message then names the folder
  }
  if (expected && expected->root_sha256() == root_sha256)
    for (const ManifestFile& file : expected->files) {
      const ManifestFile* there = found.find(file.name);
      if (there == nullptr) fail_damaged(folder / file.name, "the file is missing");
      if (!(*there == file))
        fail_damaged(folder / file.name, "expected " + std::to_string(file.size_bytes) +
                                             " bytes with SHA-256 " + file.sha256 + ", found " +
                                             std::to_string(there->size_bytes) + " bytes with " +
                                             there->sha256);
    }
  fail_damaged(folder, "expected root SHA-256 " + root_sha256 + ", found " + found.root_sha256());
}

}  // namespace

fs::path block_hashes_path(const fs::path& folder) { return folder.string() + ".blocks"; }

void write_block_hashes(const fs::path& folder, const Manifest& manifest, const FileWriter& write) {
  if (!has_blocks(manifest))
    throw Error(ErrorKind::kInternal, "the manifest of " + folder.string() +
                                          " has no block hashes for some of its files");
  const std::string json = format_manifest(manifest);
  std::string text(kMagic);
  append_number(text, json.size());
  text += json;
  for (const ManifestFile& file : manifest.files)
    for (const uint64_t hash : file.block_xxh3) append_number(text, hash);
  append_number(text, hash_of(text));
  write(block_hashes_path(folder), text);
}

std::optional<Manifest> read_block_hashes(const fs::path& folder) {
  const fs::path path = block_hashes_path(folder);
  try {
    return parse(read_file(path, kMaxBytes), path.string());
  } catch (const Error&) {
    return std::nullopt;
  }
}

Hashes load_hashes(const fs::path& folder, const std::string& root_sha256,
                   const FileWriter& write) {
  std::optional<Manifest> manifest = read_block_hashes(folder);
  if (!manifest || manifest->root_sha256() != root_sha256)
    return rehash(folder, root_sha256, write);
  return std::make_shared<const Manifest>(*std::move(manifest));
}

Hashes rehash(const fs::path& folder, const std::string& root_sha256, const FileWriter& write) {
  Manifest manifest;
  try {
    manifest = hash_folder(folder);
  } catch (const UnreadableFile& error) {
    fail_damaged(folder, error.what());
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kIo) throw;
    fail_damaged(folder, error.what());
  }
  if (manifest.root_sha256() != root_sha256) fail_by_root(folder, root_sha256, manifest);
  if (const std::string text = format_manifest(manifest); manifest_text(folder) != text)
    write(folder / kManifestName, text);
  write_block_hashes(folder, manifest, write);
  return std::make_shared<const Manifest>(std::move(manifest));
}

void check_block(const fs::path& path, const ManifestFile& file, uint64_t index,
                 std::span<const std::byte> bytes) {
  if (index < file.block_xxh3.size() && fast_hash(bytes) == file.block_xxh3[index]) return;
  const uint64_t begin = index * kHashBlockBytes;
  fail_damaged(path, "the bytes " + std::to_string(begin) + " to " +
                         std::to_string(begin + bytes.size()) +
                         " differ from those that were written (XXH3)");
}

void check_blocks(const fs::path& path, const ManifestFile& file) {
  try {
    const RegularFile opened = open_regular(path);
    check_size(path, file, opened.size_bytes);
    std::vector<std::byte> buffer(std::min<uint64_t>(kReadBytes, file.size_bytes));
    for (uint64_t at = 0; at < file.size_bytes; at += buffer.size()) {
      auto piece = std::span(buffer).first(std::min<uint64_t>(buffer.size(), file.size_bytes - at));
      if (read_at(opened.fd.get(), at, piece, path) < piece.size())
        fail_damaged(path, "it changed while it was read");
      for (uint64_t index = at / kHashBlockBytes; !piece.empty(); ++index) {
        const auto block = piece.first(std::min<size_t>(kHashBlockBytes, piece.size()));
        check_block(path, file, index, block);
        piece = piece.subspan(block.size());
      }
    }
  } catch (const UnreadableFile& error) {
    fail_damaged(path, error.what());
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kIo || error.kind() == ErrorKind::kCorrupt) throw;
    fail_damaged(path, error.what());
  }
}

std::string read_verified(const fs::path& path, const ManifestFile& file, uint64_t max_bytes) {
  std::string text;
  try {
    text = read_file(path, max_bytes);
  } catch (const UnreadableFile& error) {
    fail_damaged(path, error.what());
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kIo) throw;
    fail_damaged(path, error.what());
  }
  const auto bytes = std::as_bytes(std::span(text));
  check_size(path, file, bytes.size());
  for (uint64_t index = 0; index < num_blocks(bytes.size()); ++index)
    check_block(path, file, index, block_of(bytes, index));
  return text;
}

BlockCheck::BlockCheck(const fs::path& path, const ManifestFile& file,
                       std::span<const std::byte> mapped)
    : path_(path),
      file_(file),
      mapped_(mapped),
      taken_(std::make_unique<std::atomic<bool>[]>(num_blocks(mapped.size()))) {
  check_size(path, file, mapped.size());
}

void BlockCheck::verify(uint64_t begin, uint64_t end) {
  for (uint64_t index = begin / kHashBlockBytes; index * kHashBlockBytes < end; ++index) {
    if (taken_[index].load(std::memory_order_relaxed) || taken_[index].exchange(true)) continue;
    const auto block = block_of(mapped_, index);
    try {
      read_ahead(block);
    } catch (const UnreadableFile& error) {
      fail_damaged(path_, error.what());
    }
    check_block(path_, file_, index, block);
  }
}

}  // namespace xffl::checkpoint
