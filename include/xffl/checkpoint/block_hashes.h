// Fast hashes of the blocks of a folder's files, so that a reader verifies the bytes that it reads.
//
// The writer of a folder computes the hashes beside the SHA-256 of the manifest, from the same
// bytes. "<folder>.blocks" beside the folder keeps them: the manifest, the XXH3 of each block of
// kHashBlockBytes, and the XXH3 of all this. The file may be lost: the caller knows the folder's
// root hash from the journal, and rehash() writes the file again after it has compared the SHA-256
// of all files.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "xffl/checkpoint/manifest.h"

namespace xffl::checkpoint {

/// A folder's manifest with the block hashes of all files; null: the reader verifies nothing.
using Hashes = std::shared_ptr<const Manifest>;

std::filesystem::path block_hashes_path(const std::filesystem::path& folder);

/// Replaces a file durably. A coordinator's writer first checks that the run is still its own.
using FileWriter = std::function<void(const std::filesystem::path&, std::string_view content)>;

/// Writes "<folder>.blocks" by `write`. Throws kInternal for a manifest without block hashes.
void write_block_hashes(const std::filesystem::path& folder, const Manifest& manifest,
                        const FileWriter& write);
/// The content of "<folder>.blocks"; empty when the file is absent, damaged or unreadable: the file
/// can be made again.
std::optional<Manifest> read_block_hashes(const std::filesystem::path& folder);

/// The hashes of a folder with the root hash `root_sha256`: from "<folder>.blocks", else by
/// rehash().
Hashes load_hashes(const std::filesystem::path& folder, const std::string& root_sha256,
                   const FileWriter& write);
/// Hashes all files of the folder and compares them with `root_sha256`, then writes the block
/// hashes, and manifest.json where it is damaged, by `write`. Throws kCorrupt, naming the damaged
/// file: a file with other bytes, or one that the disk cannot read in three tries.
Hashes rehash(const std::filesystem::path& folder, const std::string& root_sha256,
              const FileWriter& write);

/// Throws kCorrupt unless `bytes` has the hash of block `index` of `file`, which lies at `path`.
void check_block(const std::filesystem::path& path, const ManifestFile& file, uint64_t index,
                 std::span<const std::byte> bytes);
/// Throws kCorrupt unless the file at `path` has the size and the blocks of `file`. Reads the file;
/// a bad sector is damage, too.
void check_blocks(const std::filesystem::path& path, const ManifestFile& file);

/// The content of the file at `path`, at most `max_bytes`. Throws kCorrupt as check_blocks() does.
std::string read_verified(const std::filesystem::path& path, const ManifestFile& file,
                          uint64_t max_bytes);

/// Verifies the blocks of a mapped file, each once. Thread-safe. A thread does not wait for a block
/// that another thread is verifying; the bytes are therefore verified when the calls of all threads
/// have returned.
class BlockCheck {
 public:
  /// Throws kCorrupt unless `mapped` has the size of `file`. `file` and the
  /// mapping outlive this object.
  BlockCheck(const std::filesystem::path& path, const ManifestFile& file,
             std::span<const std::byte> mapped);

  /// Verifies the blocks that hold the bytes from `begin` to `end`. Throws kCorrupt, also for bytes
  /// that the disk cannot read.
  void verify(uint64_t begin, uint64_t end);
  void verify_all() { verify(0, mapped_.size()); }

 private:
  const std::filesystem::path path_;
  const ManifestFile& file_;
  const std::span<const std::byte> mapped_;
  std::unique_ptr<std::atomic<bool>[]> taken_;  // per block
};

}  // namespace xffl::checkpoint
