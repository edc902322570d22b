// The ranks' lines on their way to this process's stdout and stderr.
//
// Nothing here blocks, and memory is bounded: a sink that is not read from makes the ranks wait.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace xffl::launch {

/// One of our own outputs. The descriptor is shared with others and stays blocking: it is written
/// to in pieces that fit when poll says so.
class Sink {
 public:
  explicit Sink(int fd);

  int fd() const { return fd_; }
  bool empty() const { return queue_.empty(); }
  bool full() const { return queue_.size() - written_ >= kMaxQueueBytes; }
  void add(std::string_view text);
  /// Writes one piece; to be called when poll() finds the descriptor writable. A reader that has
  /// gone away makes it forget everything, now and later.
  void write_some();

 private:
  static constexpr size_t kMaxQueueBytes = 1u << 20;

  int fd_;
  size_t piece_bytes_;
  bool broken_ = false;
  std::string queue_;
  size_t written_ = 0;  // of queue_
};

/// One output of one rank: makes whole, prefixed lines of what arrives.
class LineReader {
 public:
  LineReader(std::string prefix, Sink& sink) : prefix_(std::move(prefix)), sink_(&sink) {}

  Sink& sink() const { return *sink_; }
  void add(std::string_view bytes);
  /// What came last without a newline becomes a line, too.
  void finish();

 private:
  static constexpr size_t kMaxLineBytes = 64u << 10;

  void emit();

  std::string prefix_;
  Sink* sink_;
  std::string line_;
};

/// True when both descriptors write to the same file, pipe or terminal.
bool same_output(int fd, int other);

}  // namespace xffl::launch
