#include "output.h"

#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace xffl::launch {

// A writable pipe takes PIPE_BUF bytes without blocking; a file takes any number.
Sink::Sink(int fd) : fd_(fd), piece_bytes_(PIPE_BUF) {
  struct stat info {};
  if (::fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) piece_bytes_ = kMaxQueueBytes;
}

void Sink::add(std::string_view text) {
  if (!broken_) queue_.append(text);
}

void Sink::write_some() {
  const size_t wanted = std::min(queue_.size() - written_, piece_bytes_);
  const ssize_t n = ::write(fd_, queue_.data() + written_, wanted);
  if (n > 0) written_ += static_cast<size_t>(n);
  broken_ = n < 0 && errno != EINTR && errno != EAGAIN;
  if (broken_ || written_ == queue_.size()) {
    queue_.clear();
    written_ = 0;
  } else if (written_ >= kMaxQueueBytes / 2) {
    queue_.erase(0, written_);
    written_ = 0;
  }
}

void LineReader::add(std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t newline = bytes.find('\n');
    const size_t length = std::min({newline, bytes.size(), kMaxLineBytes - line_.size()});
    line_.append(bytes.substr(0, length));
    bytes.remove_prefix(length);
    const bool ended = !bytes.empty() && bytes.front() == '\n';
    if (ended) bytes.remove_prefix(1);
    if (ended || line_.size() == kMaxLineBytes) emit();
  }
}

void LineReader::finish() {
  if (!line_.empty()) emit();
}

void LineReader::emit() {
  sink_->add(prefix_);
  sink_->add(line_);
  sink_->add("\n");
  line_.clear();
}

bool same_output(int fd, int other) {
  struct stat a {
  }, b{};
  return ::fstat(fd, &a) == 0 && ::fstat(other, &b) == 0 && a.st_dev == b.st_dev &&
         a.st_ino == b.st_ino && a.st_rdev == b.st_rdev;
}

}  // namespace xffl::launch
