#include "xffl/tokenize/documents.h"

#include <algorithm>
#include <array>
#include <system_error>
#include <utility>

#include "format_reader.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/base/log.h"

namespace xffl::tokenize {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDataSetState = "state.json";
constexpr uint64_t kMaxStateBytes = uint64_t{16} << 20;
constexpr std::string_view kText = "{text}";
constexpr std::string_view kPrompt = "{prompt}";

constexpr std::array<std::pair<std::string_view, IdType>, 4> kIdTypes{
    {{"uint16", IdType::kUint16},
     {"int16", IdType::kInt16},
     {"int32", IdType::kInt32},
     {"uint32", IdType::kUint32}}};

struct Format {
  InputFormat format;
  std::string_view name;
  bool holds_text;
  bool holds_ids;
  std::vector<std::string_view> extensions;  // of kAuto
  std::unique_ptr<FormatReader> (*open)(const fs::path&, InputFormat, const DocumentOptions&);
};

bool has_table_name(const fs::path& path) {
  const std::string extension = path.extension();
  return extension == ".parquet" || extension == ".arrow" || extension == ".feather";
}

std::unique_ptr<FormatReader> read_chats(const fs::path& path, InputFormat format,
                                         const DocumentOptions& options) {
  return (has_table_name(path) ? read_table : read_lines)(path, format, options);
}

const std::vector<Format>& formats() {
  static const std::vector<Format> kFormats{
      {InputFormat::kAuto, "auto", true, false, {}, nullptr},
      {InputFormat::kText, "text", true, false, {}, read_lines},
      {InputFormat::kJsonl, "jsonl", true, false, {".jsonl", ".ndjson"}, read_lines},
      {InputFormat::kIds, "ids", false, true, {}, read_lines},
      {InputFormat::kBin, "bin", false, true, {}, read_bin},
      {InputFormat::kChat, "chat", false, false, {}, read_chats},
      {InputFormat::kParquet, "parquet", true, false, {".parquet"}, read_table},
      {InputFormat::kArrow, "arrow", true, false, {".arrow", ".feather"}, read_table},
  };
  return kFormats;
}

const Format& entry_of(InputFormat format) {
  return *std::ranges::find(formats(), format, &Format::format);
}

const Format& format_of(const fs::path& path, const DocumentOptions& options) {
  const bool is_table_of_ids = options.holds_ids && has_table_name(path);
  if (options.format == InputFormat::kAuto && options.holds_ids && !is_table_of_ids)
    return entry_of(InputFormat::kIds);
  if (options.format != InputFormat::kAuto &&
      !(options.format == InputFormat::kIds && is_table_of_ids))
    return entry_of(options.format);
  const std::string extension = path.extension();
  for (const Format& each : formats())
    if (std::ranges::find(each.extensions, extension) != each.extensions.end()) return each;
  return entry_of(InputFormat::kText);
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

// The names of the files in a folder of datasets' save_to_disk, in order.
std::vector<fs::path> files_of_data_set(const fs::path& folder) {
  const fs::path state = folder / kDataSetState;
  if (!fs::exists(state)) {
    const bool splits = fs::exists(folder / "dataset_dict.json");
    throw Error(ErrorKind::kUsage,
                "input " + folder.string() +
                    (splits ? " holds a data set of several splits: name one, as " +
                                  (folder / "train").string()
                            : " is a folder without " + std::string(kDataSetState) +
                                  ": expected files (its *.parquet, for example), or a folder that "
                                  "save_to_disk of datasets wrote"));
  }
  const Json json = parse_json(read_file(state, kMaxStateBytes), state.string());
  JsonObject object(json, state.string());
  const Json& list = object.at("_data_files");
  if (!list.is_array() || list.empty())
    object.fail("_data_files", "should be a list of one or more files; an empty data set has none");
  if (object.has("_indices_data_files") && !object.at("_indices_data_files").empty())
    object.fail(
        "_indices_data_files",
        "selects rows, which xffl does not read: save the data set with datasets 2 or newer");
  std::vector<fs::path> names;
  for (const Json& each : list) {
    const fs::path name = JsonObject(each, state.string() + ": _data_files").string("filename");
    if (name.empty() || name != name.filename() || name == "..")
      object.fail("_data_files", "names '" + log::printable(name.string(), 60) +
                                     "', expected the name of a file in the folder");
    names.push_back(name);
  }
  return names;
}

[[noreturn]] void fail_in_template(std::string_view pattern, const std::string& problem) {
  throw Error(ErrorKind::kUsage,
              "template \"" + log::printable(pattern, 200) + "\" " + problem +
                  "; example: 'Scrivi un documento: {text}'; write a brace as {{ or }}");
}

}  // namespace

std::vector<std::string> format_names(bool only_text) {
  std::vector<std::string> names;
  for (const Format& each : formats())
    if (each.holds_text || !only_text) names.emplace_back(each.name);
  return names;
}

bool holds_ids(InputFormat format) { return entry_of(format).holds_ids; }

bool is_table(const fs::path& input, InputFormat format) {
  if (format != InputFormat::kAuto)
    return format == InputFormat::kParquet || format == InputFormat::kArrow;
  return has_table_name(input) || fs::is_directory(input);
}

std::vector<fs::path> data_files(const std::vector<fs::path>& inputs) {
  std::vector<fs::path> files;
  for (const fs::path& input : inputs) {
    if (!fs::is_directory(input)) {
      files.push_back(input);
      continue;
    }
    for (const fs::path& name : files_of_data_set(input)) files.push_back(input / name);
  }
  return files;
}

InputFormat format_named(std::string_view name) {
  for (const Format& each : formats())
    if (each.name == name) return each.format;
  throw Error(ErrorKind::kUsage, "unknown format '" + log::printable(name, 40) + "'");
}

std::vector<std::string> id_type_names() {
  std::vector<std::string> names;
  for (const auto& [name, type] : kIdTypes) names.emplace_back(name);
  return names;
}

IdType id_type_named(std::string_view name) {
  for (const auto& [each, type] : kIdTypes)
    if (each == name) return type;
  throw Error(ErrorKind::kUsage, "unknown type of ids '" + log::printable(name, 40) + "'");
}

DocumentReader::DocumentReader(std::vector<fs::path> inputs, DocumentOptions options)
    : inputs_(data_files(inputs)), options_(std::move(options)) {
  if (inputs_.empty()) throw Error(ErrorKind::kUsage, "no input files: name them with --input");
  for (const fs::path& path : inputs_) total_bytes_ += size_of_input(path);
}

DocumentReader::~DocumentReader() = default;

uint64_t DocumentReader::bytes_read() const {
  return finished_bytes_ + (file_ ? file_->bytes_read() : 0);
}

bool DocumentReader::next(Document& document) {
  if (options_.limit != 0 && num_documents_ == options_.limit) return false;
  for (;;) {
    if (file_) {
      document = {};
      document.path = inputs_[next_input_ - 1];
      if (file_->next(document)) {
        ++num_documents_;
        return true;
      }
      finished_bytes_ += file_->bytes_read();
      file_.reset();
    }
    if (next_input_ == inputs_.size()) return false;
    const fs::path& path = inputs_[next_input_++];
    const Format& format = format_of(path, options_);
    if (!options_.prompt_field.empty() && format.format != InputFormat::kJsonl &&
        !is_table(path, format.format)) {
      throw Error(ErrorKind::kUsage, path.string() +
                                         ": a prompt field needs JSONL (*.jsonl, or --format "
                                         "jsonl), Parquet or Arrow");
    }
    file_ = format.open(path, format.format, options_);
  }
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
