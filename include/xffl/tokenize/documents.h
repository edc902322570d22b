// Documents of text and JSONL files, one at a time, in order.
//
// Text must be UTF-8; a byte order mark and carriage returns before a line's end are dropped, blank
// documents are passed over (a blank line of ids is an error). Every error names file:line.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace xffl::tokenize {

enum class InputFormat {
  kAuto,  // by name: *.jsonl and *.ndjson are JSONL, the rest is text
  kText,
  kJsonl,  // one JSON object per line, its text in `text_field`
  kIds,    // one JSON array of token ids per line
};

/// What a document of a text file is.
enum class DocumentUnit { kLine, kParagraph, kFile };  // kParagraph: lines up to a blank one

struct DocumentOptions {
  InputFormat format = InputFormat::kAuto;
  DocumentUnit unit = DocumentUnit::kParagraph;
  std::string text_field = "text";
  std::string prompt_field;  // of JSONL, what the text answers; empty: there is none
};

struct Document {
  std::string text;    // for kIds, the JSON array
  std::string prompt;  // with a prompt field
  std::filesystem::path path;
  uint64_t line = 0;  // of its first line, from 1

  std::string where() const { return path.string() + ":" + std::to_string(line); }
};

/// No document and no line may be larger than this: memory is bounded by it.
inline constexpr uint64_t kMaxDocumentBytes = uint64_t{64} << 20;

class DocumentReader {
 public:
  /// Checks that every input is there. Throws kNotFound, kUsage (none given, not a regular file).
  DocumentReader(std::vector<std::filesystem::path> inputs, DocumentOptions options);
  ~DocumentReader();

  /// The next document; false after the last. Throws kCorrupt: not UTF-8, not JSON, no such field,
  /// too large; kUsage for an input without fields where a prompt field is asked for.
  bool next(Document& document);

  uint64_t bytes_read() const;
  uint64_t total_bytes() const { return total_bytes_; }

 private:
  bool next_of_file(Document& document);
  bool next_line(Document& document);
  bool next_block(Document& document);

  std::vector<std::filesystem::path> inputs_;
  DocumentOptions options_;
  uint64_t total_bytes_ = 0;
  uint64_t finished_bytes_ = 0;
  size_t next_input_ = 0;
  struct OpenFile;
  std::unique_ptr<OpenFile> file_;
};

/// The index of the first byte that is not UTF-8 (RFC 3629), or text.size().
size_t find_invalid_utf8(std::string_view text);

}  // namespace xffl::tokenize
