// The parts that push and fetch share: the local files, the sizes that decide how a file travels,
// and the meter.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <utility>

#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/transfer/transfer.h"

namespace xffl::transfer {

inline constexpr size_t kBlockBytes = 4u << 20;
// A push that was interrupted resumes at blocks of this size. It is a quarter of a megabyte, so
// that a cut costs about one megabyte with the four channels of an upload.
inline constexpr uint64_t kResumeBytes = 256u << 10;
// A file up to this size travels with other files in one message of at most kBatchBytes and
// kBatchFiles.
inline constexpr uint64_t kSmallFileBytes = 4u << 20;
inline constexpr uint64_t kBatchBytes = 12u << 20;
inline constexpr size_t kBatchFiles = 64;
// From this size on, the queries for copies and free space are worth their round trips.
inline constexpr uint64_t kMinQueryBytes = 16u << 20;

using checkpoint::part_name;

/// The manifest in `text`; empty when the text is damaged.
std::optional<checkpoint::Manifest> parse_if_intact(const std::string& text,
                                                    const std::string& origin);

/// The kRejected error: a local file differs from its manifest by `problem`.
Error differs_from_manifest(const std::filesystem::path& path, const std::string& problem);

/// A local file of a push: random reads, verified by the block hashes.
class LocalFile {
 public:
  /// Hashes the whole file when `file` has no block hashes. Throws kRejected when the file differs
  /// from `file`.
  LocalFile(std::filesystem::path path, const checkpoint::ManifestFile& file);

  /// Fills `out` with verified bytes. Throws kRejected when a block differs or the disk cannot read
  /// it. Thread-safe.
  void read(uint64_t offset, std::span<std::byte> out) const;
  /// The SHA-256 of a range, in hexadecimal. Thread-safe.
  std::string sha256(uint64_t offset, uint64_t length, std::stop_token stop = {}) const;

 private:
  void read_unverified(uint64_t offset, std::span<std::byte> out) const;
  void check_block(uint64_t index, std::span<const std::byte> bytes) const;

  std::filesystem::path path_;
  checkpoint::ManifestFile file_;  // with block hashes
  UniqueFd fd_;
};

/// The local part file of a download.
class PartFile {
 public:
  /// Opens or creates a regular file and truncates it to `size_limit`. Throws kIo.
  PartFile(std::filesystem::path path, uint64_t size_limit);

  uint64_t size_at_opening() const { return size_; }
  /// Also starts the write-back to disk, so that the fsync of finish() is short.
  void write(uint64_t offset, std::span<const std::byte> bytes);
  /// Reads up to out.size() bytes; fewer at the end of the file.
  size_t read(uint64_t offset, std::span<std::byte> out) const;
  /// fsync, then renames to `name`. Throws kIo; a failed fsync removes the file.
  void finish(const std::filesystem::path& name);

 private:
  std::filesystem::path path_;
  UniqueFd fd_;
  uint64_t size_ = 0;
};

/// Counts the bytes of a transfer, reports its progress and checks for a stop request.
class Meter {
 public:
  Meter(uint64_t total_bytes, std::stop_token stop, const OnProgress& on_progress)
      : stop_(std::move(stop)), on_progress_(on_progress) {
    progress_.total_bytes = total_bytes;
  }

  /// Throws kCancelled when a stop was requested.
  void check(const std::string& activity) const {
    if (stop_.stop_requested())
      throw Error(ErrorKind::kCancelled,
                  activity + " was stopped; the part files are kept, run again to continue");
  }
  void moved(uint64_t bytes) {
    progress_.moved_bytes += bytes;
    present(bytes);
  }
  void present(uint64_t bytes) {
    // A session may request the same bytes twice, after a broken stream.
    progress_.done_bytes = std::min(progress_.done_bytes + bytes, progress_.total_bytes);
    if (on_progress_) on_progress_(progress_);
  }
  /// Subtracts `bytes` that failed verification.
  void undo(uint64_t bytes) { progress_.done_bytes -= std::min(bytes, progress_.done_bytes); }

  const std::stop_token& stop() const { return stop_; }
  Result result() const { return {progress_.moved_bytes}; }

 private:
  std::stop_token stop_;
  const OnProgress& on_progress_;
  Progress progress_;
};

}  // namespace xffl::transfer
