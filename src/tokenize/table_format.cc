// Parquet files, and Arrow files and streams (the files of Hugging Face's save_to_disk), by
// libarrow.
//
// How it works: libarrow reads the needed columns batch by batch, on this thread. A batch is
// validated before its first row is used: offsets, lengths and UTF-8 of a damaged file are then in
// range. libarrow reports errors as a Status, libparquet also by exceptions.
#include <arrow/array.h>
#include <arrow/io/file.h>
#include <arrow/ipc/reader.h>
#include <arrow/record_batch.h>
#include <arrow/type.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/schema.h>

#include <algorithm>
#include <array>
#include <functional>

#include "format_reader.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"

namespace xffl::tokenize {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kBatchRows = 1024, kBatchBytes = int64_t{16} << 20;
constexpr int64_t kMaxGroupBytes = int64_t{1} << 40;  // a damaged size must not overflow a sum
constexpr int kLabelWithoutLoss = -100;
constexpr int kIpcRecursion = 16;
constexpr std::string_view kIpcFileMagic = "ARROW1";
constexpr std::string_view kEndOfStream("\xff\xff\xff\xff\0\0\0\0", 8);

[[noreturn]] void fail_in(const fs::path& path, const std::string& problem) {
  throw Error(ErrorKind::kCorrupt, path.string() + ": " + problem);
}

std::string text_of(const arrow::Status& status) {
  const std::string text = status.ToString();
  return log::printable(text.substr(0, text.find('\n')), 300);
}

// Calls libarrow, whose exceptions end here.
template <typename Call>
auto guarded(const fs::path& path, const std::string& action, const Call& call) {
  try {
    auto result = call();
    if (result.ok()) return std::move(result).ValueOrDie();
    fail_in(path, action + ": " + text_of(result.status()));
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    fail_in(path, action + ": " + log::printable(error.what(), 300));
  }
}

using Batch = std::shared_ptr<arrow::RecordBatch>;

// The batches of one file; null after the last one.
class Batches {
 public:
  virtual ~Batches() = default;
  virtual const arrow::Schema& schema() const = 0;
  virtual void select(const std::vector<int>& fields) = 0;
  virtual arrow::Result<Batch> next() = 0;
  /// The part of the file that is read, 0 to 1.
  virtual double done() const = 0;
};

double share(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 1.0;
}

class ParquetBatches final : public Batches {
 public:
  explicit ParquetBatches(const fs::path& path) {
    parquet::ReaderProperties properties;
    properties.enable_buffered_stream();  // a row group need not fit into memory
    properties.set_page_checksum_verification(true);
    parquet::ArrowReaderProperties arrow_properties(/*use_threads=*/false);
    arrow_properties.set_batch_size(kBatchRows);
    arrow_properties.set_pre_buffer(false);
    parquet::arrow::FileReaderBuilder builder;
    reader_ = guarded(
        path, "not a readable Parquet file",
        [&]() -> arrow::Result<std::unique_ptr<parquet::arrow::FileReader>> {
          ARROW_RETURN_NOT_OK(builder.OpenFile(path.string(), /*memory_map=*/false, properties));
          return builder.properties(arrow_properties)->Build();
        });
    guarded(path, "not a readable Parquet file", [&]() -> arrow::Result<bool> {
      ARROW_RETURN_NOT_OK(reader_->GetSchema(&schema_));
      return true;
    });
    // A batch of long documents has few rows.
    const auto metadata = reader_->parquet_reader()->metadata();
    int64_t num_rows = 0, num_bytes = 0;
    for (int i = 0; i < metadata->num_row_groups(); ++i) {
      num_rows += std::clamp<int64_t>(metadata->RowGroup(i)->num_rows(), 0, INT32_MAX);
      num_bytes += std::clamp<int64_t>(metadata->RowGroup(i)->total_byte_size(), 0, kMaxGroupBytes);
    }
    const int64_t row_bytes = std::max<int64_t>(1, num_bytes / std::max<int64_t>(1, num_rows));
    reader_->set_batch_size(std::clamp<int64_t>(kBatchBytes / row_bytes, 1, kBatchRows));
  }

  const arrow::Schema& schema() const override { return *schema_; }
  void select(const std::vector<int>& fields) override {
    for (const int field : fields)
      add_leaves(reader_->manifest().schema_fields[static_cast<size_t>(field)]);
  }
  arrow::Result<Batch> next() override {
    if (!batches_) {
      std::vector<int> groups;
      for (int i = 0; i < reader_->num_row_groups(); ++i) groups.push_back(i);
      ARROW_ASSIGN_OR_RAISE(batches_, reader_->GetRecordBatchReader(groups, leaves_));
    }
    ARROW_ASSIGN_OR_RAISE(const Batch batch, batches_->Next());
    if (batch) num_rows_ += batch->num_rows();
    return batch;
  }
  double done() const override {
    return share(num_rows_, reader_->parquet_reader()->metadata()->num_rows());
  }

 private:
  void add_leaves(const parquet::arrow::SchemaField& field) {
    if (field.is_leaf()) leaves_.push_back(field.column_index);
    for (const parquet::arrow::SchemaField& child : field.children) add_leaves(child);
  }

  std::unique_ptr<parquet::arrow::FileReader> reader_;  // outlives batches_
  std::shared_ptr<arrow::Schema> schema_;
  std::vector<int> leaves_;
  std::unique_ptr<arrow::RecordBatchReader> batches_;
  int64_t num_rows_ = 0;
};

// An Arrow file (with a footer), or a stream, as datasets writes it.
class IpcBatches final : public Batches {
 public:
  explicit IpcBatches(const fs::path& path) : path_(path) { open(); }

  const arrow::Schema& schema() const override {
    return file_ ? *file_->schema() : *stream_->schema();
  }
  void select(const std::vector<int>& fields) override {
    fields_ = fields;
    open();
  }
  arrow::Result<Batch> next() override {
    if (stream_) return stream_->Next();
    if (next_ == file_->num_record_batches()) return Batch();
    return file_->ReadRecordBatch(next_++);
  }
  double done() const override {
    if (file_) return share(next_, file_->num_record_batches());
    return share(input_->Tell().ValueOr(0), input_->GetSize().ValueOr(0));
  }

 private:
  void open() {
    const std::string action = "not a readable Arrow file";
    guarded(path_, action, [&]() -> arrow::Result<bool> {
      file_.reset();
      stream_.reset();
      ARROW_ASSIGN_OR_RAISE(input_, arrow::io::ReadableFile::Open(path_.string()));
      arrow::ipc::IpcReadOptions options;
      options.use_threads = false;
      options.max_recursion_depth = kIpcRecursion;
      options.included_fields = fields_;
      ARROW_ASSIGN_OR_RAISE(const int64_t size, input_->GetSize());
      ARROW_ASSIGN_OR_RAISE(const auto begin, input_->ReadAt(0, kIpcFileMagic.size()));
      ARROW_ASSIGN_OR_RAISE(const auto end, input_->ReadAt(std::max<int64_t>(0, size - 8), 8));
      ARROW_RETURN_NOT_OK(input_->Seek(0));
      if (std::string_view(*begin) == kIpcFileMagic) {
        ARROW_ASSIGN_OR_RAISE(file_, arrow::ipc::RecordBatchFileReader::Open(input_, options));
      } else {
        // libarrow takes a stream that was cut between two batches for a whole one.
        if (std::string_view(*end) != kEndOfStream)
          return arrow::Status::Invalid(
              "no mark of an Arrow file at its begin, and none of the end "
              "of a stream at its end: is it cut off?");
        ARROW_ASSIGN_OR_RAISE(stream_, arrow::ipc::RecordBatchStreamReader::Open(input_, options));
      }
      return true;
    });
  }

  fs::path path_;
  std::vector<int> fields_;
  std::shared_ptr<arrow::io::ReadableFile> input_;
  std::shared_ptr<arrow::ipc::RecordBatchFileReader> file_;
  std::shared_ptr<arrow::ipc::RecordBatchStreamReader> stream_;
  int next_ = 0;
};

// A list's elements in its values array.
struct Slice {
  std::shared_ptr<arrow::Array> values;
  int64_t begin = 0;
  int64_t size = 0;
};

template <typename ListArray>
Slice slice_of(const arrow::Array& array, int64_t row) {
  const auto& list = static_cast<const ListArray&>(array);
  return {list.values(), list.value_offset(row), list.value_length(row)};
}

bool has_lists(arrow::Type::type type) {
  return type == arrow::Type::LIST || type == arrow::Type::LARGE_LIST ||
         type == arrow::Type::FIXED_SIZE_LIST || type == arrow::Type::LIST_VIEW ||
         type == arrow::Type::LARGE_LIST_VIEW;
}

Slice list_at(const arrow::Array& array, int64_t row) {
  switch (array.type_id()) {
    case arrow::Type::LIST:
      return slice_of<arrow::ListArray>(array, row);
    case arrow::Type::LARGE_LIST:
      return slice_of<arrow::LargeListArray>(array, row);
    case arrow::Type::FIXED_SIZE_LIST:
      return slice_of<arrow::FixedSizeListArray>(array, row);
    case arrow::Type::LIST_VIEW:
      return slice_of<arrow::ListViewArray>(array, row);
    case arrow::Type::LARGE_LIST_VIEW:
      return slice_of<arrow::LargeListViewArray>(array, row);
    default:
      throw Error(ErrorKind::kInternal, "a column that is no list");
  }
}

bool is_whole_number(arrow::Type::type type) {
  return arrow::is_integer(type) || type == arrow::Type::BOOL;
}

int64_t number_at(const arrow::Array& array, int64_t at) {
  const auto value = [&]<typename Array>(const Array& values) {
    return static_cast<int64_t>(values.Value(at));
  };
  switch (array.type_id()) {
    case arrow::Type::INT8:
      return value(static_cast<const arrow::Int8Array&>(array));
    case arrow::Type::INT16:
      return value(static_cast<const arrow::Int16Array&>(array));
    case arrow::Type::INT32:
      return value(static_cast<const arrow::Int32Array&>(array));
    case arrow::Type::INT64:
      return value(static_cast<const arrow::Int64Array&>(array));
    case arrow::Type::UINT8:
      return value(static_cast<const arrow::UInt8Array&>(array));
    case arrow::Type::UINT16:
      return value(static_cast<const arrow::UInt16Array&>(array));
    case arrow::Type::UINT32:
      return value(static_cast<const arrow::UInt32Array&>(array));
    case arrow::Type::UINT64:
      return value(static_cast<const arrow::UInt64Array&>(array));
    case arrow::Type::BOOL:
      return value(static_cast<const arrow::BooleanArray&>(array));
    default:
      throw Error(ErrorKind::kInternal, "a column that has no whole numbers");
  }
}

bool is_text(const arrow::DataType& type) {
  if (type.id() == arrow::Type::DICTIONARY)
    return is_text(*static_cast<const arrow::DictionaryType&>(type).value_type());
  return type.id() == arrow::Type::STRING || type.id() == arrow::Type::LARGE_STRING ||
         type.id() == arrow::Type::STRING_VIEW;
}

// Also of a dictionary's element that is null.
bool is_null(const arrow::Array& array, int64_t at) {
  if (array.IsNull(at)) return true;
  if (array.type_id() != arrow::Type::DICTIONARY) return false;
  const auto& words = static_cast<const arrow::DictionaryArray&>(array);
  return words.dictionary()->IsNull(words.GetValueIndex(at));
}

std::string_view text_at(const arrow::Array& array, int64_t at) {
  switch (array.type_id()) {
    case arrow::Type::STRING:
      return static_cast<const arrow::StringArray&>(array).GetView(at);
    case arrow::Type::LARGE_STRING:
      return static_cast<const arrow::LargeStringArray&>(array).GetView(at);
    case arrow::Type::STRING_VIEW:
      return static_cast<const arrow::StringViewArray&>(array).GetView(at);
    case arrow::Type::DICTIONARY: {
      const auto& words = static_cast<const arrow::DictionaryArray&>(array);
      return text_at(*words.dictionary(), words.GetValueIndex(at));
    }
    default:
      throw Error(ErrorKind::kInternal, "a column that is no text");
  }
}

const arrow::DataType& element_type(const arrow::DataType& list) {
  return *static_cast<const arrow::BaseListType&>(list).value_type();
}

// Rows without a byte in the file could be endless.
bool is_list(const arrow::DataType& type) {
  return has_lists(type.id()) &&
         (type.id() != arrow::Type::FIXED_SIZE_LIST ||
          static_cast<const arrow::FixedSizeListType&>(type).list_size() > 0);
}

bool is_list_of_numbers(const arrow::DataType& type) {
  return is_list(type) && is_whole_number(element_type(type).id());
}

bool is_list_of_messages(const arrow::DataType& type) {
  if (!is_list(type) || element_type(type).id() != arrow::Type::STRUCT) return false;
  const auto& message = static_cast<const arrow::StructType&>(element_type(type));
  return std::ranges::all_of(std::array{"role", "content"}, [&](const char* name) {
    const auto field = message.GetFieldByName(name);
    return field != nullptr && is_text(*field->type());
  });
}

class TableFormat final : public FormatReader {
 public:
  TableFormat(const fs::path& path, bool is_parquet, const DocumentOptions& options)
      : path_(path), options_(options), size_(fs::file_size(path)) {
    if (is_parquet)
      batches_ = std::make_unique<ParquetBatches>(path);
    else
      batches_ = std::make_unique<IpcBatches>(path);
    select_columns();
  }

  bool next(Document& document) override {
    document.unit = "row";
    while (next_row(document)) {
      if (options_.holds_ids                      ? read_ids(document)
          : options_.format == InputFormat::kChat ? read_messages(document)
                                                  : read_text(document))
        return true;
    }
    return false;
  }

  uint64_t bytes_read() const override {
    const double done = ended_ ? 1.0 : std::min(batches_->done(), 1.0);
    return static_cast<uint64_t>(done * static_cast<double>(size_));
  }

 private:
  using Check = bool (*)(const arrow::DataType&);

  // The place of a column among the selected columns; -1: the file has no such column.
  int add_column(const std::string& name, Check check, const char* expected, const char* remedy,
                 bool required = true) {
    const std::vector<int> found = batches_->schema().GetAllFieldIndices(name);
    if (found.empty() && !required) return -1;
    if (found.size() != 1) {
      std::string names;
      for (const std::string& each : batches_->schema().field_names()) {
        if (names.size() > 200) continue;
        names += (names.empty() ? "" : ", ") + log::printable(each, 40);
      }
      fail_in(path_, std::string(found.empty() ? "no column" : "more than one column") + " \"" +
                         log::printable(name, 60) + "\"; the file has: " + names + " (" + remedy +
                         ")");
    }
    const arrow::DataType& type = *batches_->schema().field(found[0])->type();
    if (!check(type))
      fail_in(path_, "column \"" + log::printable(name, 60) + "\" should be " + expected +
                         ", found " + log::printable(type.ToString(), 100) + " (" + remedy + ")");
    fields_.push_back(found[0]);
    names_.push_back(name);
    return static_cast<int>(fields_.size()) - 1;
  }

  void select_columns() {
    if (options_.holds_ids) {
      const auto add = [this](const char* name, const char* remedy, bool required) {
        return add_column(name, is_list_of_numbers, "a list of whole numbers", remedy, required);
      };
      const char* const beside = "it has an element for each of input_ids: remove or rename it";
      main_ =
          add("input_ids", "for text use --tokenizer, or another data.format in xffl.yaml", true);
      labels_ = add("labels", beside, options_.needs_labels);
      mask_ = add("attention_mask", beside, false);
    } else if (options_.format == InputFormat::kChat) {
      main_ = add_column(options_.messages_field, is_list_of_messages,
                         "a list of structs with the texts role and content",
                         "select a column with --messages-field");
    } else {
      main_ = add_column(options_.text_field, is_text, "text", "select a column with --text-field");
      if (!options_.prompt_field.empty())
        prompt_ = add_column(options_.prompt_field, is_text, "text",
                             "select a column with --prompt-field");
    }
    // A reader returns columns in the order of the file.
    std::vector<int> order = fields_;
    std::ranges::sort(order);
    order.erase(std::ranges::unique(order).begin(), order.end());
    batches_->select(order);
  }

  bool next_row(Document& document) {
    while (!batch_ || row_in_batch_ + 1 >= batch_->num_rows()) {
      if (ended_) return false;
      const std::string action = "damaged at row " + std::to_string(next_row_) + " or later";
      batch_ = guarded(path_, action, [&] { return batches_->next(); });
      row_in_batch_ = -1;
      if (!batch_) {
        ended_ = true;
        return false;
      }
      validate();
      columns_.clear();
      for (const std::string& name : names_) {
        columns_.push_back(batch_->GetColumnByName(name));
        if (!columns_.back()) fail_in(path_, action + ": a batch without column \"" + name + "\"");
      }
    }
    ++row_in_batch_;
    document.line = next_row_++;
    return true;
  }

  // Throws with the first row whose slice is damaged, or with the batch's first row.
  void validate() const {
    arrow::Status status = batch_->ValidateFull();
    if (status.ok()) return;
    uint64_t bad_row = next_row_;
    for (int64_t row = 0; row < batch_->num_rows(); ++row) {
      const arrow::Status of_row = batch_->Slice(row, 1)->ValidateFull();
      if (of_row.ok()) continue;
      status = of_row;
      bad_row += static_cast<uint64_t>(row);
      break;
    }
    const std::string place = " at row " + std::to_string(bad_row) + " or later";
    const std::string problem = text_of(status);
    fail_in(path_, problem.find("UTF8") != std::string::npos ? "not UTF-8 text" + place
                                                             : "damaged" + place + ": " + problem);
  }

  const arrow::Array& column(int index) const { return *columns_[static_cast<size_t>(index)]; }

  [[noreturn]] void fail_at(const Document& document, const std::string& problem) const {
    throw Error(ErrorKind::kCorrupt, document.where() + ": " + problem);
  }

  // The numbers of a row's list. An empty or null list is empty.
  std::vector<int64_t> numbers(const Document& document, int index) const {
    const arrow::Array& array = column(index);
    if (array.IsNull(row_in_batch_)) return {};
    const Slice slice = list_at(array, row_in_batch_);
    std::vector<int64_t> result;
    if (slice.size > static_cast<int64_t>(kMaxDocumentBytes / sizeof(int32_t)))
      fail_at(document, std::to_string(slice.size) + " ids, at most " +
                            std::to_string(kMaxDocumentBytes / sizeof(int32_t)));
    result.reserve(static_cast<size_t>(slice.size));
    for (int64_t i = 0; i < slice.size; ++i) {
      if (slice.values->IsNull(slice.begin + i))
        fail_at(document,
                names_[static_cast<size_t>(index)] + ": element " + std::to_string(i) + " is null");
      result.push_back(number_at(*slice.values, slice.begin + i));
    }
    return result;
  }

  bool read_ids(Document& document) const {
    const std::vector<int64_t> ids = numbers(document, main_);
    const auto beside = [&](int index) {
      const std::vector<int64_t> values = numbers(document, index);
      if (values.size() != ids.size())
        fail_at(document, names_[static_cast<size_t>(index)] + " has " +
                              std::to_string(values.size()) + " elements, input_ids " +
                              std::to_string(ids.size()));
      return values;
    };
    const std::vector<int64_t> labels = labels_ >= 0 ? beside(labels_) : std::vector<int64_t>();
    size_t begin = 0, end = ids.size();
    if (mask_ >= 0) {
      // Padding, on either side, is left out.
      const std::vector<int64_t> mask = beside(mask_);
      while (begin < end && mask[begin] == 0) ++begin;
      while (begin < end && mask[end - 1] == 0) --end;
      for (size_t i = begin; i < end; ++i)
        if (mask[i] != 1)
          fail_at(document, "attention_mask is " + std::to_string(mask[i]) + " at element " +
                                std::to_string(i) + ": expected 1, and 0 only for padding");
    }
    for (size_t i = begin; i < end; ++i) {
      if (ids[i] < 0 || ids[i] > INT32_MAX)
        fail_at(document, "element " + std::to_string(i) + " is " + std::to_string(ids[i]) +
                              ", expected a token id");
      document.ids.push_back(static_cast<int32_t>(ids[i]));
      if (labels_ < 0) continue;
      if (labels[i] != ids[i] && labels[i] != kLabelWithoutLoss)
        fail_at(document, "labels has " + std::to_string(labels[i]) + " where the id is " +
                              std::to_string(ids[i]) + ", expected that id or -100");
      document.is_target.push_back(labels[i] == ids[i] ? 1 : 0);
    }
    return !document.ids.empty();
  }

  std::string text(const Document& document, int index) const {
    if (is_null(column(index), row_in_batch_)) return {};
    return checked(document, text_at(column(index), row_in_batch_));
  }

  std::string checked(const Document& document, std::string_view text) const {
    if (text.size() > kMaxDocumentBytes)
      fail_at(document, "a text has more than " + std::to_string(kMaxDocumentBytes >> 20) + " MiB");
    return std::string(text);
  }

  bool read_text(Document& document) const {
    document.text = text(document, main_);
    if (prompt_ >= 0) document.prompt = text(document, prompt_);
    return !is_blank(document.text);
  }

  bool read_messages(Document& document) const {
    if (column(main_).IsNull(row_in_batch_)) return false;
    const Slice slice = list_at(column(main_), row_in_batch_);
    const auto& structs = static_cast<const arrow::StructArray&>(*slice.values);
    const auto roles = structs.GetFieldByName("role"), contents = structs.GetFieldByName("content");
    for (int64_t at = slice.begin; at < slice.begin + slice.size; ++at) {
      const std::string message = "message " + std::to_string(at - slice.begin);
      if (structs.IsNull(at) || is_null(*roles, at) || is_null(*contents, at))
        fail_at(document, message + " has no role or no content (null)");
      // As in JSONL: the model's own template would show a field such as tool_calls.
      for (int field = 0; field < structs.num_fields(); ++field) {
        const std::string& name = structs.type()->field(field)->name();
        if (name != "role" && name != "content" && !is_null(*structs.field(field), at))
          fail_at(document, message + ": the field " + log::printable(name, 40) +
                                " is in no chat template of xffl: remove it, or apply the template "
                                "with transformers and give xffl input_ids and labels");
      }
      document.messages.push_back(
          {std::string(text_at(*roles, at)), checked(document, text_at(*contents, at))});
    }
    return !document.messages.empty();
  }

  fs::path path_;
  const DocumentOptions& options_;
  uint64_t size_;
  std::unique_ptr<Batches> batches_;
  std::vector<int> fields_;         // the selected columns' places in the file
  std::vector<std::string> names_;  // and names
  int main_ = -1, labels_ = -1, mask_ = -1, prompt_ = -1;
  Batch batch_;
  std::vector<std::shared_ptr<arrow::Array>> columns_;  // of the batch, as names_
  int64_t row_in_batch_ = -1;
  uint64_t next_row_ = 0;
  bool ended_ = false;
};

}  // namespace

bool reads_tables() { return true; }

std::unique_ptr<FormatReader> read_table(const fs::path& path, InputFormat format,
                                         const DocumentOptions& options) {
  const bool is_parquet = format == InputFormat::kParquet ||
                          (format == InputFormat::kChat && path.extension() == ".parquet");
  return std::make_unique<TableFormat>(path, is_parquet, options);
}

}  // namespace xffl::tokenize
