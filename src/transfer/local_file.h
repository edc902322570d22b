// A local file that is sent: read anywhere, and hashed as a whole.
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

Error not_as_manifest(const std::filesystem::path& path, const std::string& problem);

class LocalFile {
 public:
  LocalFile(std::filesystem::path path, const checkpoint::ManifestFile& file);

  /// Fills `out`. Throws kRejected when the file ends before. Thread-safe.
  void read(uint64_t offset, std::span<std::byte> out) const;
  /// In hexadecimal. Thread-safe.
  std::string sha256(uint64_t offset, uint64_t length, std::stop_token stop = {}) const;
  /// Throws kRejected unless the whole content is what the manifest says. False: it was stopped.
  bool check(std::stop_token stop) const;
  /// What the file is now, and should be: changes whenever the file is written to.
  std::string content() const;

 private:
  std::filesystem::path path_;
  const checkpoint::ManifestFile& file_;
  UniqueFd fd_;
};

}  // namespace xffl::transfer
