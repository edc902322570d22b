// A file whose later content begins with its earlier content.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "xffl/base/file.h"

namespace xffl::exports {

// Takes the whole content, in pieces: compares the bytes that the file has already, and appends the
// others. Holds one block of memory.
class GrowingFile {
 public:
  /// Creates the file if it is absent. Throws kBusy while another GrowingFile has it open, also in
  /// another process; kRejected for a file that is not a regular one.
  explicit GrowingFile(std::filesystem::path path);

  /// Throws kRejected at the first byte that differs from the file's.
  void add(std::string_view bytes);
  /// Writes the rest, and fsyncs. Throws kRejected when the file has more bytes.
  void finish();

  uint64_t size_bytes() const { return position_; }
  uint64_t appended_bytes() const { return position_ - std::min(position_, had_bytes_); }

 private:
  void flush();
  [[noreturn]] void reject(const std::string& problem) const;

  const std::filesystem::path path_;
  UniqueFd fd_;
  uint64_t had_bytes_ = 0;  // at the beginning
  uint64_t position_ = 0;   // of the end of buffer_
  std::string buffer_;
};

}  // namespace xffl::exports
