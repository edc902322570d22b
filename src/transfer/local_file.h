// A local file of a push: random reads and the check of its hash.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <stop_token>
#include <string>

#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/checkpoint/manifest.h"

namespace xffl::transfer {

/// kRejected: a local file differs from its manifest by `problem`.
Error differs_from_manifest(const std::filesystem::path& path, const std::string& problem);

class LocalFile {
 public:
  LocalFile(std::filesystem::path path, const checkpoint::ManifestFile& file);

  /// Fills `out`. Throws kRejected when the file ends early. Thread-safe.
  void read(uint64_t offset, std::span<std::byte> out) const;
  /// The SHA-256 of a range, in hexadecimal. Thread-safe.
  std::string sha256(uint64_t offset, uint64_t length, std::stop_token stop = {}) const;
  /// Throws kRejected unless the whole content has the manifest's hash. False after a stop request.
  bool check(std::stop_token stop) const;
  /// A key of the expected hash and the inode's identity, size and times. It changes with every
  /// write to the file.
  std::string content_key() const;

 private:
  std::filesystem::path path_;
  const checkpoint::ManifestFile& file_;
  UniqueFd fd_;
};

}  // namespace xffl::transfer
