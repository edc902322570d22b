#include "line_reader.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "xffl/base/error.h"
#include "xffl/tokenize/documents.h"

namespace xffl::tokenize {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

}  // namespace

LineReader::LineReader(std::filesystem::path path)
    : path_(std::move(path)), fd_(open_file(path_, O_RDONLY)) {}

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
      throw Error(ErrorKind::kCorrupt, where() + ": a line of more than " +
                                           std::to_string(kMaxDocumentBytes >> 20) + " MiB");
    }
    position_ = end == std::string::npos ? stop : stop + 1;
    if (end != std::string::npos || !fill()) break;
  }
  if (!line.empty() && line.back() == '\r') line.pop_back();
  if (line_number_ == 1 && line.starts_with(kByteOrderMark)) line.erase(0, kByteOrderMark.size());
  return true;
}

}  // namespace xffl::tokenize
