#include "xffl/tokenize/documents.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "line_reader.h"
#include "xffl/base/error.h"
#include "xffl/base/json.h"
#include "xffl/base/log.h"

namespace xffl::tokenize {
namespace {

namespace fs = std::filesystem;

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
  const auto byte = static_cast<unsigned char>(line[bad]);
  const char digits[] = "0123456789abcdef";
  throw Error(ErrorKind::kCorrupt, lines.where() + ": not UTF-8 text: byte 0x" + digits[byte >> 4] +
                                       digits[byte & 15] + " at column " + std::to_string(bad + 1) +
                                       "; convert the file, for example with iconv");
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
    throw Error(ErrorKind::kCorrupt, lines.where() + ": no field \"" + field +
                                         "\"; the object has: " + keys_of(json) + " (choose with " +
                                         flag + ")");
  }
  if (!found->is_string()) {
    throw Error(ErrorKind::kCorrupt, lines.where() + ": field \"" + field +
                                         "\" should be a string, it is " +
                                         std::string(found->type_name()));
  }
  return found->get<std::string>();
}

void read_json_line(std::string_view line, const LineReader& lines, const DocumentOptions& options,
                    Document& document) {
  const Json json = parse_json(line, lines.where(), {.max_bytes = kMaxDocumentBytes});
  if (!json.is_object()) {
    throw Error(ErrorKind::kCorrupt,
                lines.where() + ": expected a JSON object, found " + std::string(json.type_name()));
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
  if (inputs_.empty()) throw Error(ErrorKind::kUsage, "no input files; give some with --input");
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
      throw Error(ErrorKind::kCorrupt, document.where() + ": a document of more than " +
                                           std::to_string(kMaxDocumentBytes >> 20) +
                                           " MiB; choose --document line or paragraph");
    }
  }
  document.text.erase(document.text.find_last_not_of(" \t\r\n\f\v") + 1);
  return !empty;
}

}  // namespace xffl::tokenize
