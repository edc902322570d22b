// Commands at a facility, with their output framed between two marks with a random nonce.
//
// How it works: a login shell may be bash, csh or fish and may print text before and after the
// output (motd, .bashrc). A cut link looks like the end of a command. Every shell understands
// `exec sh -c 'eval "$(printf %b "...")"'`, where \0NNN encodes each character of the script with a
// meaning to some shell. The script prints the nonce before and after the command's output, on both
// streams, with the exit code. The reader ignores text outside the marks. Without the second mark
// the outcome is unknown.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "connection.h"
#include "xffl/base/sha256.h"
#include "xffl/remote/session.h"

namespace xffl::remote {

/// Encodes `script` (POSIX shell) as one command for any login shell, with the marks of `nonce`.
/// Throws kConfig when the command exceeds the kernel's limit for one argument.
std::string framed_command(std::string_view script, std::string_view nonce);

/// Extracts the output from a stream that arrives in pieces.
class FrameReader {
 public:
  using Output = std::function<void(std::string_view)>;

  /// `expected_bytes` is the size of a successful output. The reader searches for the second mark
  /// only beyond this size.
  explicit FrameReader(std::string_view nonce, uint64_t expected_bytes = 0);

  /// Passes on bytes that are certainly output. Throws kRemote when more than 1 MiB precedes the
  /// first mark.
  void feed(std::string_view bytes, const Output& output);
  /// Finds a second mark before `expected_bytes`. Call finish() at the end of the stream.
  void finish(const Output& output);

  bool begun() const { return begun_; }
  /// The exit code, after the second mark.
  std::optional<int> exit_code() const { return exit_code_; }
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
  std::string held_;  // bytes that may be part of the second mark
  std::string noise_;
};

/// A running command at the facility: its input, output and exit code.
class FramedCommand {
 public:
  struct Options {
    uint64_t expected_bytes = 0;  // see FrameReader
    size_t window_bytes = 0;      // receive window; 0: libssh's
    std::shared_ptr<std::vector<std::byte>> buffer =
        nullptr;  // commands of one thread may share a buffer
  };

  /// Starts `script`. Throws kRemote, kCancelled.
  FramedCommand(std::shared_ptr<Connection> connection, const std::string& script, Options options,
                Deadline deadline, const std::stop_token& stop);

  /// Moves some bytes: `input`, which shrinks, to the command's stdin and the command's stdout to
  /// `output`, which FramedCommand calls without the mutex. Returns false when `deadline` passes.
  /// The command's stderr counts as an event, not as progress of `input` or `output`.
  bool move(std::span<const std::byte>& input, const FrameReader::Output& output, Deadline deadline,
            const std::stop_token& stop);
  /// Writes `input` to the command's stdin until the command ends. Throws kRemote when `deadline`
  /// passes.
  void give(std::span<const std::byte> input, const FrameReader::Output& output, Deadline deadline,
            const std::stop_token& stop);
  /// Opens the receive window before the first take().
  void open_window(const FrameReader::Output& output);
  /// Changes the receive window from the next opening on, and the buffer with it.
  void set_window(size_t window_bytes);
  void end_input() { channel_.send_eof(); }
  /// Waits for output bytes and passes the bytes to `output`; false after the command has ended.
  /// Throws kRemote when `deadline` passes.
  bool take(const FrameReader::Output& output, Deadline deadline, const std::stop_token& stop);

  /// False after the command's end or the channel's.
  bool runs() const { return !ended() && !at_end_; }
  bool ended() const { return out_.exit_code().has_value() && (err_.exit_code() || at_end_); }
  /// Throws kRemote when the link or the shell ended before the exit code arrived: the command's
  /// effect is then unknown.
  int exit_code() const;
  const std::string& err() const { return err_text_; }

 private:
  [[noreturn]] void fail_in_time() const;

  std::string nonce_ = random_hex(16);
  std::string name_;
  Channel channel_;
  FrameReader out_, err_;
  std::string err_text_;
  size_t window_bytes_;
  std::shared_ptr<std::vector<std::byte>> buffer_;
  bool at_end_ = false;  // the channel has ended
};

/// Runs `script` to its end and drops output beyond 16 MiB. Throws kRemote after `timeout`, too:
/// run_script() then closes the channel but kills no process at the facility.
CommandResult run_script(const std::shared_ptr<Connection>& connection, const std::string& script,
                         std::string_view stdin_text, std::chrono::milliseconds timeout,
                         const std::stop_token& stop);
/// Like run_script(), for a command that moves files through its stdin or stdout: the command has
/// no time limit while bytes of these streams move. Throws kRemote after timeouts().operation
/// without such a byte; `activity` is for the message.
CommandResult run_moving_script(const std::shared_ptr<Connection>& connection,
                                const std::string& script, std::string_view stdin_text,
                                const std::string& activity, const std::stop_token& stop);

}  // namespace xffl::remote
