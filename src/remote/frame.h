// Frames a command's output between two marks with a random nonce.
//
// How it works: a log-in shell may be bash, csh or fish and may print text before and after the
// output (motd, .bashrc), and a cut link looks like the end of a command. Every shell understands
// `exec sh -c 'eval "$(printf %b "...")"'`, where \0NNN encodes each character of the script with a
// meaning to some shell. The script prints the nonce before and after the command's output, on both
// streams, with the exit code. Text outside the marks is ignored; without the second mark the
// outcome is unknown.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace xffl::remote {

/// Encodes `script` (POSIX shell) as one command for any log-in shell, with the marks of `nonce`.
/// Throws kConfig when the command exceeds the kernel's limit for one argument.
std::string framed_command(std::string_view script, std::string_view nonce);

/// Extracts the output from a stream that arrives in pieces.
class FrameReader {
 public:
  using Output = std::function<void(std::string_view)>;

  /// `expected_bytes`: the size of a successful output; up to it the mark is not searched.
  explicit FrameReader(std::string_view nonce, uint64_t expected_bytes = 0);

  /// Passes on bytes that are certainly output. Throws kRemote when more than 1 MiB precedes the
  /// first mark.
  void feed(std::string_view bytes, const Output& output);
  /// Called at the end of the stream: finds a second mark before `expected_bytes`.
  void finish(const Output& output);

  bool begun() const { return begun_; }
  /// The exit code, after the second mark.
  std::optional<int> exit_code() const { return exit_code_; }
  uint64_t output_bytes() const { return output_bytes_; }
  /// Text before the first mark.
  const std::string& noise() const { return noise_; }

 private:
  void find_begin();
  bool find_end(size_t from, const Output& output);
  void pass(size_t count, const Output& output);

  const std::string begin_, end_;
  const uint64_t expected_bytes_;
  bool begun_ = false;
  std::optional<int> exit_code_;
  uint64_t output_bytes_ = 0;
  std::string held_;  // may be part of the second mark
  std::string noise_;
};

}  // namespace xffl::remote
