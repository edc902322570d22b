// Lines of a file that may be larger than memory, with their numbers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "xffl/base/file.h"

namespace xffl::tokenize {

class LineReader {
 public:
  explicit LineReader(std::filesystem::path path);

  /// The next line without its end ("\n" or "\r\n"); false at the end of the file. Throws kCorrupt
  /// when it is longer than kMaxDocumentBytes.
  bool next(std::string& line);

  uint64_t line_number() const { return line_number_; }  // of the line last read, from 1
  uint64_t bytes_read() const { return bytes_read_; }
  const std::filesystem::path& path() const { return path_; }
  std::string where() const { return path_.string() + ":" + std::to_string(line_number_); }

 private:
  bool fill();

  std::filesystem::path path_;
  UniqueFd fd_;
  std::string buffer_;
  size_t position_ = 0;
  uint64_t line_number_ = 0;
  uint64_t bytes_read_ = 0;
};

}  // namespace xffl::tokenize
