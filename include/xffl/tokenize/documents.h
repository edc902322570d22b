// Documents of files in several formats, one at a time, in order, and the prompt around each
// document.
//
// Text must be UTF-8. The reader drops a byte order mark and carriage returns at the ends of lines,
// and skips blank documents (a blank line of ids is an error). Every error names file:line.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "xffl/tokens/prepared.h"

namespace xffl::tokenize {

enum class InputFormat {
  kAuto,  // by name: *.jsonl and *.ndjson are JSONL, *.parquet, *.arrow and *.feather; other files
          // text
  kText,
  kJsonl,  // one JSON object per line, its text in `text_field`
  kIds,    // one JSON array of token ids per line; of *.parquet and *.arrow, a row of ids
  kBin,    // raw little-endian ids of `id_type`, see DocumentOptions
  kChat,   // conversations in `messages_field` of JSONL, or of Parquet or Arrow by the file's name
  // Tables, by libarrow: the text in the column `text_field`, or, if they hold ids, the columns
  // input_ids and, if there, labels and attention_mask, whose 0 mark padding to leave out.
  kParquet,
  kArrow,  // a file or a stream
};

/// The names of the formats in --format; `only_text`: without the formats that hold no text.
std::vector<std::string> format_names(bool only_text);
/// True for a format of ids.
bool holds_ids(InputFormat format);
/// True for a format of tables, which hold text or ids; kAuto: by the name.
bool is_table(const std::filesystem::path& input, InputFormat format);
/// True when this build has libarrow, which reads tables.
bool reads_tables();
/// The files of the inputs, in order: a folder that datasets' save_to_disk wrote stands for its
/// data files. Throws kUsage for another folder, kCorrupt for a damaged one.
std::vector<std::filesystem::path> data_files(const std::vector<std::filesystem::path>& inputs);
/// Throws kUsage.
InputFormat format_named(std::string_view name);

/// The type of the ids in a file of raw ids.
enum class IdType { kUint16, kInt16, kInt32, kUint32 };
std::vector<std::string> id_type_names();
/// Throws kUsage.
IdType id_type_named(std::string_view name);

using tokens::DocumentUnit;

struct DocumentOptions {
  InputFormat format = InputFormat::kAuto;
  bool needs_labels = false;  // a table of ids without labels is an error
  bool holds_ids = false;     // the inputs hold ids, not text; encode_ids() sets it
  DocumentUnit unit = DocumentUnit::kParagraph;
  std::string text_field = "text";
  std::string
      prompt_field;  // JSONL and tables: the prompt that the text answers; empty: no prompts
  std::string messages_field = "messages";  // kChat
  IdType id_type = IdType::kUint16;         // kBin
  // kBin: a document ends after this id; none: every `row_ids` ids are a document. A file of rows
  // whose last row is short is refused if `whole_rows`.
  std::optional<int32_t> end_id;
  uint64_t row_ids = 2048;
  bool whole_rows = false;
  uint64_t limit = 0;  // the reader ends after as many documents of all inputs; 0: no limit
};

struct ChatMessage {
  std::string role;
  std::string content;
};

struct Document {
  std::string text;    // kIds: the JSON array
  std::string prompt;  // with a prompt field
  // The ids of a format other than kIds; its text is empty. `is_target` has 0 or 1 for each id if
  // there are labels.
  std::vector<int32_t> ids;
  std::vector<uint8_t> is_target;
  std::vector<ChatMessage> messages;  // of a conversation; its text is empty
  std::filesystem::path path;
  uint64_t line = 0;  // the number of the first line, from 1
  // Without lines: "id" or "row", and the number from 0 is in `line`.
  std::string_view unit;

  /// "file.txt:7" or "file.bin: id 4096".
  std::string where() const {
    return path.string() + (unit.empty() ? ":" : ": " + std::string(unit) + " ") +
           std::to_string(line);
  }
};

/// The maximum size of a document and of a line; it bounds the memory.
inline constexpr uint64_t kMaxDocumentBytes = uint64_t{64} << 20;

class FormatReader;

class DocumentReader {
 public:
  /// Checks all inputs, files or folders as in data_files(). Throws kNotFound, kUsage (no input, or
  /// not a regular file).
  DocumentReader(std::vector<std::filesystem::path> inputs, DocumentOptions options);
  ~DocumentReader();

  /// Reads the next document; returns false after the last document or the limit. Throws kCorrupt:
  /// not UTF-8, not JSON, a missing field, too large; kUsage for a prompt field with an input that
  /// is neither JSONL nor a table.
  bool next(Document& document);

  uint64_t bytes_read() const;
  uint64_t total_bytes() const { return total_bytes_; }

 private:
  std::vector<std::filesystem::path> inputs_;
  DocumentOptions options_;
  uint64_t total_bytes_ = 0;
  uint64_t finished_bytes_ = 0;
  uint64_t num_documents_ = 0;
  size_t next_input_ = 0;
  std::unique_ptr<FormatReader> file_;
};

/// A document in its prompt; the prompt ends at `text_begin`.
struct Prompted {
  std::string text;
  size_t text_begin = 0;
};

/// A facility's prompt around each document: "Scrivi un documento: {text}", or, when each document
/// answers a prompt of its own, "<|user|>{prompt}<|assistant|>{text}".
class PromptTemplate {
 public:
  /// The template "{text}": the document alone.
  PromptTemplate() = default;
  /// `pattern` holds exactly one {text} and, before {text}, at most one {prompt}. "{{" and "}}"
  /// stand for braces; any other brace is an error. Throws kUsage.
  explicit PromptTemplate(std::string_view pattern);

  bool has_prompt() const { return has_prompt_; }
  /// True when nothing precedes the text.
  bool begins_with_text() const { return !has_prompt_ && before_text_.empty(); }
  Prompted apply(std::string_view prompt, std::string_view text) const;

 private:
  bool has_prompt_ = false;
  std::string before_prompt_;
  std::string before_text_;
  std::string after_text_;
};

/// The index of the first byte that is not UTF-8 (RFC 3629), or text.size().
size_t find_invalid_utf8(std::string_view text);

}  // namespace xffl::tokenize
