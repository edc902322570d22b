#include "xffl/tokenize/documents.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

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
constexpr std::string_view kText = "{text}";
constexpr std::string_view kPrompt = "{prompt}";

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

InputFormat format_of(const fs::path& path, InputFormat asked) {
  if (asked != InputFormat::kAuto) return asked;
  const fs::path extension = path.extension();
  const bool jsonl = extension == ".jsonl" || extension == ".ndjson";
  return jsonl ? InputFormat::kJsonl : InputFormat::kText;
}

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n\f\v") == std::string_view::npos;
}

void check_text(std::string_view line, const LineReader& lines) {
  const size_t bad = std::min(find_invalid_utf8(line), line.find('\0'));
  if (bad >= line.size()) return;
  throw Error(ErrorKind::kCorrupt, lines.where() + ": not UTF-8 text: byte 0x" +
                                       to_hex(std::as_bytes(std::span(&line[bad], 1))) +
                                       " at column " + std::to_string(bad + 1) +
                                       "; convert the file, for example with iconv");
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

uint64_t size_of_input(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) {
    throw Error(ErrorKind::kNotFound, "input " + path.string() + " does not exist");
  }
  if (!fs::is_regular_file(status)) {
    throw Error(ErrorKind::kUsage, "input " + path.string() + " is not a regular file");
  }
  return fs::file_size(path);
}

[[noreturn]] void fail_in_template(std::string_view pattern, const std::string& problem) {
  throw Error(ErrorKind::kUsage,
              "template \"" + log::printable(pattern, 200) + "\" " + problem +
                  "; example: 'Scrivi un documento: {text}'; write a brace as {{ or }}");
}

}  // namespace

struct DocumentReader::OpenFile {
  OpenFile(fs::path path, InputFormat asked)
      : format(format_of(path, asked)), lines(std::move(path)) {}

  InputFormat format;
  LineReader lines;
  std::string line;
};

DocumentReader::DocumentReader(std::vector<fs::path> inputs, DocumentOptions options)
    : inputs_(std::move(inputs)), options_(std::move(options)) {
  if (inputs_.empty()) throw Error(ErrorKind::kUsage, "no input files: name them with --input");
  for (const fs::path& path : inputs_) total_bytes_ += size_of_input(path);
}

DocumentReader::~DocumentReader() = default;

uint64_t DocumentReader::bytes_read() const {
  return finished_bytes_ + (file_ ? file_->lines.bytes_read() : 0);
}

bool DocumentReader::next(Document& document) {
  for (;;) {
    if (file_) {
      if (next_of_file(document)) return true;
      finished_bytes_ += file_->lines.bytes_read();
      file_.reset();
    }
    if (next_input_ == inputs_.size()) return false;
    file_ = std::make_unique<OpenFile>(inputs_[next_input_++], options_.format);
    if (!options_.prompt_field.empty() && file_->format != InputFormat::kJsonl) {
      throw Error(ErrorKind::kUsage,
                  file_->lines.path().string() +
                      ": a prompt field needs JSONL (*.jsonl, or --format jsonl)");
    }
  }
}

bool DocumentReader::next_of_file(Document& document) {
  document.path = file_->lines.path();
  document.text.clear();
  const bool by_line = file_->format != InputFormat::kText || options_.unit == DocumentUnit::kLine;
  return by_line ? next_line(document) : next_block(document);
}

bool DocumentReader::next_line(Document& document) {
  OpenFile& file = *file_;
  while (file.lines.next(file.line)) {
    check_text(file.line, file.lines);
    document.line = file.lines.line_number();
    if (is_blank(file.line)) {
      if (file.format != InputFormat::kIds) continue;
      throw Error(ErrorKind::kCorrupt,
                  document.where() + ": a blank line, expected a JSON array of ids");
    }
    if (file.format == InputFormat::kJsonl) {
      read_json_line(file.line, file.lines, options_, document);
    } else {
      document.text = file.line;
    }
    if (!is_blank(document.text)) return true;
  }
  return false;
}

bool DocumentReader::next_block(Document& document) {
  OpenFile& file = *file_;
  bool empty = true;
  while (file.lines.next(file.line)) {
    check_text(file.line, file.lines);
    if (is_blank(file.line)) {
      if (empty) continue;
      if (options_.unit == DocumentUnit::kParagraph) break;
    }
    if (empty) document.line = file.lines.line_number();
    if (!empty) document.text += '\n';
    document.text += file.line;
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

PromptTemplate::PromptTemplate(std::string_view pattern) {
  bool found = false;
  std::string* part = &before_text_;
  for (size_t i = 0; i < pattern.size();) {
    const std::string_view rest = pattern.substr(i);
    if (rest.starts_with("{{") || rest.starts_with("}}")) {
      *part += rest[0];
      i += 2;
    } else if (rest.starts_with(kText)) {
      if (found) fail_in_template(pattern, "has {text} twice");
      found = true;
      part = &after_text_;
      i += kText.size();
    } else if (rest.starts_with(kPrompt)) {
      if (has_prompt_ || found) fail_in_template(pattern, "has {prompt} twice or after {text}");
      has_prompt_ = true;
      before_prompt_ = std::exchange(before_text_, "");
      i += kPrompt.size();
    } else if (rest[0] == '{' || rest[0] == '}') {
      fail_in_template(pattern, "has a field or brace at column " + std::to_string(i + 1) +
                                    " that is neither {text} nor {prompt}");
    } else {
      *part += rest[0];
      ++i;
    }
  }
  if (!found) fail_in_template(pattern, "has no {text}");
}

Prompted PromptTemplate::apply(std::string_view prompt, std::string_view text) const {
  Prompted result;
  if (has_prompt_) result.text.append(before_prompt_).append(prompt);
  result.text += before_text_;
  result.text_begin = result.text.size();
  result.text.append(text).append(after_text_);
  return result;
}

}  // namespace xffl::tokenize
