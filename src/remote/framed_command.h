// A running command at the facility: its input, output and exit code.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "channel.h"
#include "frame.h"
#include "xffl/base/sha256.h"
#include "xffl/remote/session.h"

namespace xffl::remote {

class FramedCommand {
 public:
  struct Options {
    uint64_t expected_bytes = 0;  // see FrameReader
    size_t window_bytes = 0;      // receive window; 0: libssh's
    std::shared_ptr<std::vector<std::byte>> buffer =
        nullptr;  // commands of one thread may share it
  };

  /// Starts `script`. Throws kRemote, kCancelled.
  FramedCommand(std::shared_ptr<Connection> connection, const std::string& script, Options options,
                Deadline deadline, const std::stop_token& stop);

  /// Writes `input` to the command's stdin until the command ends; `output` receives its stdout
  /// meanwhile, called without a lock.
  void give(std::span<const std::byte> input, const FrameReader::Output& output, Deadline deadline,
            const std::stop_token& stop);
  /// Opens the receive window before the first take().
  void open_window(const FrameReader::Output& output);
  void end_input() { channel_.send_eof(); }
  /// Waits for output and passes it on; false after the command has ended.
  bool take(const FrameReader::Output& output, Deadline deadline, const std::stop_token& stop);

  bool ended() const { return out_.exit_code().has_value() && (err_.exit_code() || at_end_); }
  /// Throws kRemote when the link or the shell ended before the exit code arrived: the command's
  /// effect is then unknown.
  int exit_code() const;
  const std::string& err() const { return err_text_; }
  uint64_t output_bytes() const { return out_.output_bytes(); }

 private:
  void progress(std::span<const std::byte>& input, const FrameReader::Output& output,
                Deadline deadline, const std::stop_token& stop);

  std::string nonce_ = random_hex(16);
  std::string name_;
  Channel channel_;
  FrameReader out_, err_;
  std::string err_text_;
  size_t window_bytes_;
  std::shared_ptr<std::vector<std::byte>> buffer_;
  bool at_end_ = false;  // the channel has ended
};

/// Runs `script` to its end; output beyond 16 MiB is dropped. Throws kRemote after `timeout`, too:
/// the channel is closed, but no process at the facility is killed.
CommandResult run_script(const std::shared_ptr<Connection>& connection, const std::string& script,
                         std::string_view stdin_text, std::chrono::milliseconds timeout,
                         const std::stop_token& stop);

}  // namespace xffl::remote
