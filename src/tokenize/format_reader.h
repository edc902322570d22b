// One input in one data format: the readers behind DocumentReader.
//
// A new format is one implementation of FormatReader and one row of the table in documents.cc.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "xffl/tokenize/documents.h"

namespace xffl::tokenize {

class FormatReader {
 public:
  virtual ~FormatReader() = default;
  /// As DocumentReader::next(), for one input. `document` is new but for its path.
  virtual bool next(Document& document) = 0;
  /// The bytes of the input read so far; all of them after the last document.
  virtual uint64_t bytes_read() const = 0;
};

/// Text, JSONL and lines of ids; `format` is not kAuto.
std::unique_ptr<FormatReader> read_lines(const std::filesystem::path& path, InputFormat format,
                                         const DocumentOptions& options);

/// Raw ids.
std::unique_ptr<FormatReader> read_bin(const std::filesystem::path& path, InputFormat format,
                                       const DocumentOptions& options);

/// Parquet and Arrow files; kChat: of conversations, by the file's name. Another file for a build
/// without libarrow, where every call throws kUnsupported.
std::unique_ptr<FormatReader> read_table(const std::filesystem::path& path, InputFormat format,
                                         const DocumentOptions& options);

/// True when a text holds nothing but white space.
bool is_blank(std::string_view text);

}  // namespace xffl::tokenize
