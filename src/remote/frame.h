// A command's output between two marks that no noise can imitate.
//
// How it works: log-in shells may print what they like before and after (motd, .bashrc), may be
// bash, csh or fish, and a cut link looks like an end. So the command that is sent is understood by
// all of them alike: `exec sh -c 'eval "$(printf %b "...")"'`, with every character of our script
// that any shell could take for its own as \0NNN; and the script prints a random nonce before and
// after the command's own output, on both streams, with the exit code. Only what lies between is
// output; without the second mark the outcome is not known.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace xffl::remote {

/// `script`, POSIX shell, as one command for whatever log-in shell, printing the marks of `nonce`.
/// Throws kConfig when it is longer than what one argument of a process may be.
std::string framed_command(std::string_view script, std::string_view nonce);

/// "exec 'word' ...": an argument vector as a script.
std::string script_of(const std::vector<std::string>& argv);

/// Finds the output in a stream that arrives in pieces.
class FrameReader {
 public:
  using Output = std::function<void(std::string_view)>;

  /// `expected_bytes`: the output has so many bytes or ends with an error; less is searched.
  explicit FrameReader(std::string_view nonce, uint64_t expected_bytes = 0);

  /// Passes on what is surely output. Throws kRemote when more than 1 MiB precedes the first mark.
  void feed(std::string_view bytes, const Output& output);
  /// The stream is over: finds a second mark that came earlier than expected_bytes promised.
  void finish(const Output& output);

  bool begun() const { return begun_; }
  /// The exit code, once the second mark has been seen.
  std::optional<int> exit_code() const { return exit_code_; }
  uint64_t output_bytes() const { return output_bytes_; }
  /// What preceded the first mark.
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
  std::string held_;  // not yet known to be output
  std::string noise_;
};

}  // namespace xffl::remote
