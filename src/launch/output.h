// Copies the ranks' lines to this process's stdout and stderr.
//
// No call blocks, and memory is bounded: with a slow reader the ranks wait.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace xffl::launch {

/// An output of this process. Other processes share the descriptor, so it stays blocking; each
/// write fits into the space that poll() guarantees.
class Sink {
 public:
  explicit Sink(int fd);

  int fd() const { return fd_; }
  bool empty() const { return queue_.empty(); }
  bool full() const { return queue_.size() - written_ >= kMaxQueueBytes; }
  void add(std::string_view text);
  /// Writes one piece; call when poll() reports the descriptor writable. After the reader has
  /// closed the output, all text is discarded.
  void write_some();

 private:
  static constexpr size_t kMaxQueueBytes = 1u << 20;

  int fd_;
  size_t piece_bytes_;
  bool broken_ = false;
  std::string queue_;
  size_t written_ = 0;  // bytes of queue_
};

/// Splits one output of one rank into whole, prefixed lines.
class LineReader {
 public:
  LineReader(std::string prefix, Sink& sink) : prefix_(std::move(prefix)), sink_(&sink) {}

  Sink& sink() const { return *sink_; }
  void add(std::string_view bytes);
  /// Emits the text after the last newline as a line.
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
