#include "xffl/checkpoint/safetensors.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include "file_names.h"
#include "trailing_hash.h"
#include "xffl/base/error.h"
#include "xffl/base/json.h"
#include "xffl/base/log.h"
#include "xffl/base/threads.h"

namespace xffl::checkpoint {
namespace {

constexpr size_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 8u << 20;
constexpr size_t kMaxDimensions = 8;
constexpr std::string_view kMetadataKey = "__metadata__";

struct TensorEntry {
  TensorSpec spec;
  uint64_t begin = 0;  // offset in the data
};

struct Header {
  uint64_t data_begin = 0;           // offset of the data in the file
  std::vector<TensorEntry> tensors;  // in the order of their data
  std::map<std::string, std::string> metadata;
};

// Parses and checks a header; `file` holds the whole file's bytes, `origin` names the file in
// errors. Throws kCorrupt.
class HeaderParser {
 public:
  HeaderParser(std::span<const std::byte> file, const std::string& origin)
      : file_(file), origin_(origin) {}

  Header parse() {
    Header header;
    const std::string_view text = header_text();
    header.data_begin = kLengthBytes + text.size();
    const SortedJson json = parse_sorted_json(
        text, origin_ + ": header",
        {.max_bytes = kMaxHeaderBytes, .max_depth = 4, .max_keys = kMaxTensors + 1});
    const size_t num_tensors = json.size() - (json.contains(kMetadataKey) ? 1 : 0);
    if (num_tensors > kMaxTensors) {
      fail("expected at most " + std::to_string(kMaxTensors) + " tensors, found " +
           std::to_string(num_tensors));
    }
    for (const auto& [name, value] : json.items()) {
      if (name == kMetadataKey) {
        header.metadata = parse_metadata(value);
      } else {
        header.tensors.push_back(parse_tensor(name, value));
      }
    }
    check_coverage(header);
    return header;
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const {
    throw Error(ErrorKind::kCorrupt, origin_ + ": " + problem);
  }

  std::string_view header_text() const {
    if (file_.size() < kLengthBytes) {
      fail("expected at least 8 bytes of header length, found a file of " +
           std::to_string(file_.size()) + " bytes");
    }
    uint64_t length = 0;
    std::memcpy(&length, file_.data(), sizeof length);
    if (length > kMaxHeaderBytes) {
      fail("expected a header of at most " + std::to_string(kMaxHeaderBytes) + " bytes, found " +
           std::to_string(length));
    }
    if (length > file_.size() - kLengthBytes) {
      fail("truncated: the header has " + std::to_string(length) + " bytes, the file only " +
           std::to_string(file_.size() - kLengthBytes) + " after the length");
    }
    const char* text = reinterpret_cast<const char*>(file_.data()) + kLengthBytes;
    if (length == 0 || text[0] != '{') fail("header: expected JSON that starts with '{'");
    return {text, static_cast<size_t>(length)};
  }

  std::map<std::string, std::string> parse_metadata(const SortedJson& json) const {
    if (!json.is_object()) {
      fail(std::string("__metadata__: expected an object, found ") + json.type_name());
    }
    std::map<std::string, std::string> metadata;
    for (const auto& [key, value] : json.items()) {
      if (!value.is_string()) {
        fail("__metadata__: '" + log::printable(key, 200) + "': expected a string, found " +
             value.type_name());
      }
      metadata.emplace(key, value.get<std::string>());
    }
    return metadata;
  }

  TensorEntry parse_tensor(const std::string& name, const SortedJson& json) const {
    if (!is_plain_name(name)) {
      fail("tensor name '" + log::printable(name, 300) +
           "': expected 1 to 200 characters of A-Z a-z 0-9 . _ -");
    }
    const std::string where = "tensor '" + name + "': ";
    if (!json.is_object()) fail(where + "expected an object, found " + json.type_name());
    for (const auto& [key, value] : json.items()) {
      if (key != "dtype" && key != "shape" && key != "data_offsets") {
        fail(where + "unknown key '" + log::printable(key, 200) + "'");
      }
    }
    for (const char* key : {"dtype", "shape", "data_offsets"}) {
      if (!json.contains(key)) fail(where + "'" + key + "' is missing");
    }
    TensorEntry entry;
    entry.spec.name = name;
    entry.spec.dtype = parse_tensor_dtype(json["dtype"], where);
    entry.spec.shape = parse_shape(json["shape"], where);
    entry.begin = parse_offsets(json["data_offsets"], entry.spec, where);
    return entry;
  }

  Dtype parse_tensor_dtype(const SortedJson& json, const std::string& where) const {
    if (!json.is_string()) fail(where + "dtype: expected a string, found " + json.type_name());
    const auto text = json.get<std::string>();
    const std::optional<Dtype> dtype = parse_dtype(text);
    if (!dtype) fail(where + "dtype: '" + log::printable(text, 60) + "' is not known");
    return *dtype;
  }

  std::vector<int64_t> parse_shape(const SortedJson& json, const std::string& where) const {
    if (!json.is_array()) fail(where + "shape: expected a list, found " + json.type_name());
    if (json.size() > kMaxDimensions) {
      fail(where + "shape: expected at most " + std::to_string(kMaxDimensions) +
           " dimensions, found " + std::to_string(json.size()));
    }
    std::vector<int64_t> shape;
    for (const SortedJson& item : json) {
      const uint64_t extent = unsigned_integer(item, where + "shape");
      if (extent > static_cast<uint64_t>(INT64_MAX)) {
        fail(where + "shape: " + std::to_string(extent) + " is too large");
      }
      shape.push_back(static_cast<int64_t>(extent));
    }
    return shape;
  }

  uint64_t parse_offsets(const SortedJson& json, const TensorSpec& spec,
                         const std::string& where) const {
    if (!json.is_array() || json.size() != 2) {
      fail(where + "data_offsets: expected a list of two numbers");
    }
    const uint64_t begin = unsigned_integer(json[0], where + "data_offsets");
    const uint64_t end = unsigned_integer(json[1], where + "data_offsets");
    if (begin > end) {
      fail(where + "data_offsets: the end " + std::to_string(end) + " lies before the start " +
           std::to_string(begin));
    }
    uint64_t num_bytes = size_bytes(spec.dtype);
    for (const int64_t extent : spec.shape) {
      if (__builtin_mul_overflow(num_bytes, static_cast<uint64_t>(extent), &num_bytes) ||
          num_bytes > static_cast<uint64_t>(INT64_MAX)) {
        fail(where + "shape " + format_shape(spec.shape) + " overflows 63 bits");
      }
    }
    if (end - begin != num_bytes) {
      fail(where + "data_offsets: expected " + std::to_string(num_bytes) + " bytes for " +
           std::string(to_string(spec.dtype)) + " " + format_shape(spec.shape) + ", found " +
           std::to_string(end - begin));
    }
    return begin;
  }

  uint64_t unsigned_integer(const SortedJson& json, const std::string& where) const {
    if (!json.is_number_unsigned()) {
      fail(where + ": expected an integer from 0 to 2^64 - 1, found " +
           log::printable(json.dump(-1, ' ', true), 60));
    }
    return json.get<uint64_t>();
  }

  // Sorts the tensors by position and checks that they cover the data without gap or overlap.
  void check_coverage(Header& header) const {
    const uint64_t data_size = file_.size() - header.data_begin;
    std::sort(header.tensors.begin(), header.tensors.end(),
              [](const TensorEntry& a, const TensorEntry& b) {
                return std::pair(a.begin, a.begin + a.spec.num_bytes()) <
                       std::pair(b.begin, b.begin + b.spec.num_bytes());
              });
    uint64_t covered = 0;
    const std::string* previous = nullptr;
    for (const TensorEntry& entry : header.tensors) {
      const std::string where = "tensor '" + entry.spec.name + "': ";
      if (entry.begin < covered) {
        fail(where + "its data at " + std::to_string(entry.begin) + " overlaps the data of '" +
             *previous + "', which ends at " + std::to_string(covered));
      }
      if (entry.begin > covered) {
        fail(where + "a gap of " + std::to_string(entry.begin - covered) +
             " bytes lies before its data at " + std::to_string(entry.begin));
      }
      if (entry.spec.num_bytes() > data_size - covered) {
        fail(where + "its data ends at " + std::to_string(covered + entry.spec.num_bytes()) +
             ", the file's data at " + std::to_string(data_size) +
             " (a truncated file, or the header of another file)");
      }
      covered += entry.spec.num_bytes();
      previous = &entry.spec.name;
    }
    if (covered != data_size) {
      fail("expected " + std::to_string(covered) + " bytes of data, found " +
           std::to_string(data_size));
    }
  }

  std::span<const std::byte> file_;
  const std::string& origin_;
};

void check_writable(const std::vector<TensorSpec>& tensors, const std::string& origin) {
  const auto fail = [&](const std::string& problem) {
    throw Error(ErrorKind::kRejected, "cannot write " + origin + ": " + problem);
  };
  if (tensors.size() > kMaxTensors) {
    fail("expected at most " + std::to_string(kMaxTensors) + " tensors, found " +
         std::to_string(tensors.size()));
  }
  std::set<std::string_view> names;
  for (const TensorSpec& spec : tensors) {
    const std::string where = "tensor '" + log::printable(spec.name, 300) + "': ";
    if (!is_plain_name(spec.name) || spec.name == kMetadataKey) {
      fail(where + "expected a name of 1 to 200 characters of A-Z a-z 0-9 . _ -");
    }
    if (!names.insert(spec.name).second) fail(where + "appears twice");
    if (spec.shape.size() > kMaxDimensions) fail(where + "too many dimensions");
    for (const int64_t extent : spec.shape) {
      if (extent < 0) fail(where + "negative extent in shape " + format_shape(spec.shape));
    }
  }
}

// The bytes of a file before its data, for `tensors` in their order: length, JSON, spaces up to a
// multiple of 8. Throws kRejected for tensors that HeaderParser rejects.
std::string format_header(const std::vector<TensorSpec>& tensors,
                          const std::map<std::string, std::string>& metadata,
                          const std::string& origin) {
  check_writable(tensors, origin);
  // format_header() composes the JSON itself, in the order of the data; names need no escapes.
  std::string json = "{";
  if (!metadata.empty()) {
    json += "\"__metadata__\":" + SortedJson(metadata).dump();
  }
  uint64_t begin = 0;
  for (const TensorSpec& spec : tensors) {
    const uint64_t end = begin + spec.num_bytes();
    if (json.size() > 1) json += ",";
    json.append("\"").append(spec.name).append("\":{\"dtype\":\"").append(to_string(spec.dtype));
    json.append("\",\"shape\":").append(SortedJson(spec.shape).dump());
    json.append(",\"data_offsets\":[").append(std::to_string(begin)).append(",");
    json.append(std::to_string(end)).append("]}");
    begin = end;
  }
  json += "}";
  json.append((8 - json.size() % 8) % 8, ' ');
  if (json.size() > kMaxHeaderBytes) {
    throw Error(ErrorKind::kRejected, "cannot write " + origin + ": the header has " +
                                          std::to_string(json.size()) + " bytes, at most " +
                                          std::to_string(kMaxHeaderBytes) + " are allowed");
  }
  const uint64_t length = json.size();
  std::string text(kLengthBytes, '\0');
  std::memcpy(text.data(), &length, sizeof length);
  return text + json;
}

constexpr size_t kBlockBytes = 1u << 19;
constexpr size_t kBlocksAhead = 2;  // blocks waiting for the disk

}  // namespace

int64_t TensorSpec::num_elements() const {
  int64_t product = 1;
  for (const int64_t extent : shape) {
    if (__builtin_mul_overflow(product, extent, &product)) {
      throw Error(ErrorKind::kRejected,
                  "tensor '" + name + "': shape " + format_shape(shape) + " overflows 63 bits");
    }
  }
  return product;
}

uint64_t TensorSpec::num_bytes() const {
  uint64_t product = 0;
  if (__builtin_mul_overflow(static_cast<uint64_t>(num_elements()), size_bytes(dtype), &product)) {
    throw Error(ErrorKind::kRejected,
                "tensor '" + name + "': shape " + format_shape(shape) + " overflows 64 bits");
  }
  return product;
}

std::string format_shape(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : file_(path) { parse(); }

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path, const ManifestFile& file)
    : file_(path), check_(std::make_unique<BlockCheck>(file_.path(), file, file_.bytes())) {
  const uint64_t size = file_.bytes().size();
  check_->verify(0, std::min(size, kLengthBytes));
  uint64_t length = 0;
  if (size >= kLengthBytes) std::memcpy(&length, file_.bytes().data(), sizeof length);
  check_->verify(0, kLengthBytes + std::min(length, size - std::min(size, kLengthBytes)));
  parse();
}

void SafetensorsFile::parse() {
  Header header = HeaderParser(file_.bytes(), path().string()).parse();
  data_begin_ = header.data_begin;
  metadata_ = std::move(header.metadata);
  tensors_.reserve(header.tensors.size());
  for (TensorEntry& entry : header.tensors) {
    entries_.emplace(entry.spec.name, Entry{tensors_.size(), entry.begin});
    tensors_.push_back(std::move(entry.spec));
  }
}

bool SafetensorsFile::verify(std::span<const std::byte> part) const {
  const auto whole = file_.bytes();
  if (part.data() < whole.data() || part.data() >= whole.data() + whole.size()) return false;
  const auto begin = static_cast<uint64_t>(part.data() - whole.data());
  if (check_) check_->verify(begin, begin + part.size());
  return true;
}

void SafetensorsFile::verify_all() const {
  if (check_) check_->verify_all();
}

bool SafetensorsFile::contains(std::string_view name) const { return entries_.contains(name); }

const TensorSpec& SafetensorsFile::spec(std::string_view name) const {
  return tensors_[find(name).index];
}

std::span<const std::byte> SafetensorsFile::data(std::string_view name) const {
  const Entry& entry = find(name);
  return file_.bytes().subspan(data_begin_ + entry.begin, tensors_[entry.index].num_bytes());
}

const SafetensorsFile::Entry& SafetensorsFile::find(std::string_view name) const {
  const auto it = entries_.find(name);
  if (it == entries_.end()) {
    throw Error(ErrorKind::kNotFound,
                path().string() + ": no tensor '" + log::printable(name, 200) + "'");
  }
  return it->second;
}

// How it works: while the caller fills the next block, one thread writes and another thread hashes
// the previous blocks. A slow hash blocks neither the caller nor the writing thread.
struct SafetensorsWriter::State {
  const std::filesystem::path path;
  TempFile temp;
  uint64_t data_size = 0;
  uint64_t written = 0;
  BlockPool pool{kBlockBytes};
  Block block;  // the block that the caller fills
  // Declared last: their threads use the members above.
  TrailingHash hash;
  BlockWorker writing;

  explicit State(std::filesystem::path file)
      : path(std::move(file)),
        temp(path),
        hash(temp.fd(), temp.path()),
        writing(kBlocksAhead, [this](const Block& each) {
          write_at(temp.fd(), each.offset, each.span(), temp.path());
          start_write_back(temp.fd(), each.offset, each.size);
          hash.written(each.offset + each.size);
        }) {}

  // The free bytes of the current block, at least `width`.
  std::span<std::byte> space(size_t width) {
    if (block.bytes && kBlockBytes - block.size < width) submit_block();
    if (!block.bytes) block.bytes = pool.take();
    return {block.bytes.get() + block.size, kBlockBytes - block.size};
  }

  void append(uint64_t size, size_t width, const MakeBytes& make) {
    for (uint64_t offset = 0; offset < size;) {
      const std::span<std::byte> to = space(width);
      const size_t count = std::min<uint64_t>(to.size() / width * width, size - offset);
      make(offset, to.first(count));
      block.size += count;
      offset += count;
    }
  }

  void append(std::span<const std::byte> bytes) {
    append(bytes.size(), 1, [&](uint64_t offset, std::span<std::byte> to) {
      std::copy_n(bytes.begin() + static_cast<ptrdiff_t>(offset), to.size(), to.begin());
    });
  }

  void submit_block() {
    hash.put(block);
    writing.put(block);
    block = {block.offset + block.size, 0, nullptr};
  }

  ManifestFile finish() {
    if (block.size > 0) submit_block();
    writing.finish();
    temp.sync();
    ManifestFile file = hash.finish(block.offset, path.filename().string());
    temp.publish();
    return file;
  }

  void check_space(uint64_t size) const {
    if (size <= data_size - written) return;
    throw Error(ErrorKind::kInternal,
                "writing " + path.string() + ": expected " + std::to_string(data_size) +
                    " bytes of data, got at least " + std::to_string(written + size));
  }
};

SafetensorsWriter::SafetensorsWriter(std::filesystem::path path, std::vector<TensorSpec> tensors,
                                     const std::map<std::string, std::string>& metadata) {
  const std::string header = format_header(tensors, metadata, path.string());
  state_ = std::make_unique<State>(std::move(path));
  for (const TensorSpec& spec : tensors) state_->data_size += spec.num_bytes();
  state_->append(std::as_bytes(std::span(header)));
}

SafetensorsWriter::~SafetensorsWriter() = default;
SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&&) noexcept = default;

void SafetensorsWriter::write(std::span<const std::byte> bytes) {
  state_->check_space(bytes.size());
  state_->append(bytes);
  state_->written += bytes.size();
}

void SafetensorsWriter::write(uint64_t size, size_t width, const MakeBytes& make) {
  state_->check_space(size);
  state_->append(size, width, make);
  state_->written += size;
}

ManifestFile SafetensorsWriter::finish() {
  if (state_->written != state_->data_size) {
    throw Error(ErrorKind::kInternal, "writing " + state_->path.string() + ": expected " +
                                          std::to_string(state_->data_size) +
                                          " bytes of data, got " + std::to_string(state_->written));
  }
  return state_->finish();
}

}  // namespace xffl::checkpoint
