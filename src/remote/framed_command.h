// A command at the facility while it runs: input to it, output from it, and how it ended.
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
    uint64_t expected_bytes = 0;                               // of output; see FrameReader
    size_t window_bytes = 0;                                   // of output under way; 0: libssh's
    std::shared_ptr<std::vector<std::byte>> buffer = nullptr;  // shared by commands of one thread
  };

  /// Starts `script`. Throws kRemote, kCancelled.
  FramedCommand(std::shared_ptr<Connection> connection, const std::string& script, Options options,
                Deadline deadline, const std::stop_token& stop);

  /// Gives all of `input` to the command; less when the command ends before. `output` takes what
  /// the command says meanwhile, outside of any lock.
  void give(std::span<const std::byte> input, const FrameReader::Output& output, Deadline deadline,
            const std::stop_token& stop);
  /// Lets output come before anybody waits for it.
  void open_window(const FrameReader::Output& output);
  void end_input() { channel_.send_eof(); }
  /// Waits for something to happen and passes output on; false once the command has ended.
  bool take(const FrameReader::Output& output, Deadline deadline, const std::stop_token& stop);

  bool ended() const { return out_.exit_code().has_value() && (err_.exit_code() || over_); }
  /// Throws kRemote when the link or the shell ended before the command said how it ended: whether
  /// it had its effect is then not known.
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
  bool over_ = false;  // no more will come
};

/// Runs `script` to its end; output beyond 16 MiB is dropped. Throws kRemote after `timeout` too:
/// nothing is killed over there, the channel is closed.
CommandResult run_script(const std::shared_ptr<Connection>& connection, const std::string& script,
                         std::string_view stdin_text, std::chrono::milliseconds timeout,
                         const std::stop_token& stop);

}  // namespace xffl::remote
