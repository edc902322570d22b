// Raw ids, as nanoGPT, llm.c and Megatron's tools store them without a header: little-endian
// integers of one type, end to end.
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstring>

#include "format_reader.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"

namespace xffl::tokenize {
namespace {

namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little);

constexpr size_t kBinBufferBytes = size_t{1} << 20;  // a multiple of every id's size
constexpr uint64_t kMaxDocumentIds = kMaxDocumentBytes / sizeof(int32_t);

struct Width {
  std::string_view name;
  size_t bytes;
};

Width width_of(IdType type) {
  switch (type) {
    case IdType::kUint16:
      return {"uint16", 2};
    case IdType::kInt16:
      return {"int16", 2};
    case IdType::kInt32:
      return {"int32", 4};
    case IdType::kUint32:
      return {"uint32", 4};
  }
  throw Error(ErrorKind::kInternal, "unknown type of ids");
}

template <typename T>
int64_t load(const char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

class BinFormat final : public FormatReader {
 public:
  BinFormat(fs::path path, const DocumentOptions& options)
      : path_(std::move(path)),
        options_(options),
        width_(width_of(options.id_type)),
        fd_(open_file(path_, O_RDONLY)) {
    if (!options_.end_id && options_.row_ids == 0)
      throw Error(ErrorKind::kUsage, "a row of 0 ids: use 1 or more");
    const uint64_t row = options_.whole_rows && !options_.end_id ? options_.row_ids : 1;
    const uint64_t size = fs::file_size(path_);
    if (size % (width_.bytes * row) != 0) {
      throw Error(ErrorKind::kCorrupt,
                  path_.string() + " has " + std::to_string(size) +
                      " bytes, expected a multiple of " + std::to_string(width_.bytes * row) +
                      ", the size of " + (row == 1 ? "an id" : "a row") + " of type " +
                      std::string(width_.name) + "; is --id-type right, or was the file cut?");
    }
  }

  bool next(Document& document) override {
    document.unit = "id";
    document.line = next_id_;
    const uint64_t most = options_.end_id ? kMaxDocumentIds : options_.row_ids;
    int64_t id = 0;
    while (read(id)) {
      document.ids.push_back(check(id));
      if (options_.end_id ? id == *options_.end_id : document.ids.size() == most) return true;
      if (document.ids.size() == kMaxDocumentIds)
        throw Error(ErrorKind::kCorrupt, document.where() + ": a document has more than " +
                                             std::to_string(kMaxDocumentIds) +
                                             " ids; is --end-id right?");
    }
    return !document.ids.empty();
  }

  uint64_t bytes_read() const override { return bytes_read_; }

 private:
  bool read(int64_t& id) {
    if (position_ == size_ && !fill()) return false;
    const char* at = buffer_.data() + position_;
    switch (options_.id_type) {
      case IdType::kUint16:
        id = load<uint16_t>(at);
        break;
      case IdType::kInt16:
        id = load<int16_t>(at);
        break;
      case IdType::kInt32:
        id = load<int32_t>(at);
        break;
      case IdType::kUint32:
        id = load<uint32_t>(at);
        break;
    }
    position_ += width_.bytes;
    ++next_id_;
    return true;
  }

  bool fill() {
    position_ = size_ = 0;
    while (size_ < buffer_.size()) {
      const ssize_t count = ::read(fd_.get(), buffer_.data() + size_, buffer_.size() - size_);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) throw system_error("read " + path_.string(), errno);
      if (count == 0) break;
      size_ += static_cast<size_t>(count);
    }
    bytes_read_ += size_;
    if (size_ % width_.bytes != 0)
      throw Error(ErrorKind::kCorrupt, path_.string() + " was cut while it was read");
    return size_ > 0;
  }

  int32_t check(int64_t id) const {
    if (id >= 0 && id <= INT32_MAX) return static_cast<int32_t>(id);
    throw Error(ErrorKind::kCorrupt, path_.string() + ": id " + std::to_string(next_id_ - 1) +
                                         " is " + std::to_string(id) +
                                         ", expected 0 or more; is --id-type " +
                                         std::string(width_.name) + " right?");
  }

  fs::path path_;
  const DocumentOptions& options_;
  Width width_;
  UniqueFd fd_;
  std::vector<char> buffer_ = std::vector<char>(kBinBufferBytes);
  size_t position_ = 0, size_ = 0;
  uint64_t bytes_read_ = 0;
  uint64_t next_id_ = 0;
};

}  // namespace

std::unique_ptr<FormatReader> read_bin(const fs::path& path, InputFormat /*format*/,
                                       const DocumentOptions& options) {
  return std::make_unique<BinFormat>(path, options);
}

}  // namespace xffl::tokenize
