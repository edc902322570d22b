// Formats of lines: text, JSONL, conversations, and JSON arrays of ids.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <span>
#include <utility>

#include "format_reader.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/base/log.h"
#include "xffl/base/sha256.h"

namespace xffl::tokenize {
namespace {

namespace fs = std::filesystem;

constexpr size_t kBufferBytes = size_t{1} << 20;
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

// The lines of a file, which may be larger than memory, with their numbers.
class LineReader {
 public:
  explicit LineReader(fs::path path) : path_(std::move(path)), fd_(open_file(path_, O_RDONLY)) {}

  /// Reads the next line without its end ("\n" or "\r\n"); false at the end of the file. Throws
  /// kCorrupt for a line longer than kMaxDocumentBytes.
  bool next(std::string& line);

  uint64_t line_number() const { return line_number_; }  // the last line read, from 1
  uint64_t bytes_read() const { return bytes_read_; }
  const fs::path& path() const { return path_; }
  std::string where() const { return path_.string() + ":" + std::to_string(line_number_); }

 private:
  bool fill();

  fs::path path_;
  UniqueFd fd_;
  std::string buffer_;
  size_t position_ = 0;
  uint64_t line_number_ = 0;
  uint64_t bytes_read_ = 0;
};

bool LineReader::fill() {
  buffer_.resize(kBufferBytes);
  position_ = 0;
  ssize_t num_bytes = 0;
  do {
    num_bytes = ::read(fd_.get(), buffer_.data(), buffer_.size());
  } while (num_bytes < 0 && errno == EINTR);
  if (num_bytes < 0) throw system_error("read " + path_.string(), errno);
  buffer_.resize(static_cast<size_t>(num_bytes));
  bytes_read_ += static_cast<uint64_t>(num_bytes);
  return num_bytes > 0;
}

bool LineReader::next(std::string& line) {
  line.clear();
  if (position_ == buffer_.size() && !fill()) return false;
  ++line_number_;
  for (;;) {
    const size_t end = buffer_.find('\n', position_);
    const size_t stop = end == std::string::npos ? buffer_.size() : end;
    line.append(buffer_, position_, stop - position_);
    if (line.size() > kMaxDocumentBytes) {
      throw Error(ErrorKind::kCorrupt, where() + ": a line has more than " +
                                           std::to_string(kMaxDocumentBytes >> 20) + " MiB");
    }
    position_ = end == std::string::npos ? stop : stop + 1;
    if (end != std::string::npos || !fill()) break;
  }
  if (!line.empty() && line.back() == '\r') line.pop_back();
  if (line_number_ == 1 && line.starts_with(kByteOrderMark)) line.erase(0, kByteOrderMark.size());
  return true;
}

void check_text(std::string_view line, const LineReader& lines) {
  const size_t bad = std::min(find_invalid_utf8(line), line.find('\0'));
  if (bad >= line.size()) return;
  const char* remedy = line[bad] == '\0'
                           ? "remove NULs with tr -d '\\000', or convert UTF-16 with iconv"
                           : "convert the file, for example with iconv";
  throw Error(ErrorKind::kCorrupt, lines.where() + ": not UTF-8 text: byte 0x" +
                                       to_hex(std::as_bytes(std::span(&line[bad], 1))) +
                                       " at column " + std::to_string(bad + 1) + "; " + remedy);
}

[[noreturn]] void fail(const LineReader& lines, const std::string& problem) {
  throw Error(ErrorKind::kCorrupt, lines.where() + ": " + problem);
}

std::string keys_of(const Json& object) {
  std::string keys;
  for (const auto& [key, value] : object.items()) {
    keys += (keys.empty() ? "" : ", ") + log::printable(key, 40);
    if (keys.size() > 200) return keys + ", ...";
  }
  return keys.empty() ? "none" : keys;
}

std::string field_of(const Json& json, const LineReader& lines, const std::string& field,
                     const char* flag) {
  const auto found = json.find(field);
  if (found == json.end()) {
    fail(lines, "no field \"" + field + "\"; the object has: " + keys_of(json) +
                    " (select a field with " + flag + ")");
  }
  if (!found->is_string()) {
    fail(lines, "field \"" + field + "\" should be a string, found " + found->type_name());
  }
  return found->get<std::string>();
}

void read_json_line(std::string_view line, const LineReader& lines, const DocumentOptions& options,
                    Document& document) {
  const Json json = parse_json(line, lines.where(), {.max_bytes = kMaxDocumentBytes});
  if (!json.is_object()) {
    fail(lines, std::string("expected a JSON object, found ") + json.type_name());
  }
  document.text = field_of(json, lines, options.text_field, "--text-field");
  if (options.prompt_field.empty()) return;
  document.prompt = field_of(json, lines, options.prompt_field, "--prompt-field");
}

// {"messages": [{"role": "user", "content": "Ciao"}, ...], ...}
void read_chat_line(std::string_view line, const LineReader& lines, const DocumentOptions& options,
                    Document& document) {
  const Json json = parse_json(line, lines.where(), {.max_bytes = kMaxDocumentBytes});
  if (!json.is_object())
    fail(lines, std::string("expected a JSON object, found ") + json.type_name());
  const std::string& field = options.messages_field;
  const auto found = json.find(field);
  if (found == json.end())
    fail(lines, "no field \"" + field + "\"; the object has: " + keys_of(json) +
                    " (select a field with --messages-field)");
  if (!found->is_array() || found->empty())
    fail(lines, "field \"" + field + "\" should be a list of messages");
  for (const Json& each : *found) {
    const std::string where =
        lines.where() + ": message " + std::to_string(document.messages.size());
    if (!each.is_object()) throw Error(ErrorKind::kCorrupt, where + " is not a JSON object");
    JsonObject message(each, where);
    document.messages.push_back({message.string("role"), message.string("content")});
    // The model's own template would show a key such as tool_calls.
    for (const auto& [key, value] : each.items()) {
      if (key != "role" && key != "content" && !value.is_null())
        message.fail(key,
                     "is in no chat template of xffl: remove it, or apply the template with "
                     "transformers and use --format ids");
    }
  }
}

class LineFormats final : public FormatReader {
 public:
  LineFormats(const fs::path& path, InputFormat format, const DocumentOptions& options)
      : format_(format), options_(options), lines_(path) {}

  bool next(Document& document) override;
  uint64_t bytes_read() const override { return lines_.bytes_read(); }

 private:
  bool next_line(Document& document);
  bool next_block(Document& document);

  InputFormat format_;
  const DocumentOptions& options_;
  LineReader lines_;
  std::string line_;
};

bool LineFormats::next(Document& document) {
  const bool by_line = format_ != InputFormat::kText || options_.unit == DocumentUnit::kLine;
  return by_line ? next_line(document) : next_block(document);
}

bool LineFormats::next_line(Document& document) {
  while (lines_.next(line_)) {
    check_text(line_, lines_);
    document.line = lines_.line_number();
    if (is_blank(line_)) {
      if (format_ != InputFormat::kIds) continue;
      throw Error(ErrorKind::kCorrupt,
                  document.where() + ": a blank line, expected a JSON array of ids");
    }
    if (format_ == InputFormat::kChat) {
      read_chat_line(line_, lines_, options_, document);
      return true;
    }
    if (format_ == InputFormat::kJsonl) {
      read_json_line(line_, lines_, options_, document);
    } else {
      document.text = line_;
    }
    if (!is_blank(document.text)) return true;
  }
  return false;
}

bool LineFormats::next_block(Document& document) {
  bool empty = true;
  while (lines_.next(line_)) {
    check_text(line_, lines_);
    if (is_blank(line_)) {
      if (empty) continue;
      if (options_.unit == DocumentUnit::kParagraph) break;
    }
    if (empty) document.line = lines_.line_number();
    if (!empty) document.text += '\n';
    document.text += line_;
    empty = false;
    if (document.text.size() > kMaxDocumentBytes) {
      throw Error(ErrorKind::kCorrupt, document.where() + ": a document has more than " +
                                           std::to_string(kMaxDocumentBytes >> 20) +
                                           " MiB; use --document line or paragraph");
    }
  }
  document.text.erase(document.text.find_last_not_of(" \t\r\n\f\v") + 1);
  return !empty;
}

}  // namespace

std::unique_ptr<FormatReader> read_lines(const fs::path& path, InputFormat format,
                                         const DocumentOptions& options) {
  return std::make_unique<LineFormats>(path, format, options);
}

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n\f\v") == std::string_view::npos;
}

}  // namespace xffl::tokenize
