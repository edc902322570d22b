#include "framed_command.h"

#include <algorithm>
#include <array>

#include "xffl/base/error.h"
#include "xffl/base/log.h"

namespace xffl::remote {
namespace {

constexpr size_t kMaxOutputBytes = 16u << 20;
constexpr size_t kMaxErrorBytes = 1u << 20;
constexpr size_t kReadBytes = 256u << 10;
constexpr size_t kWriteBytes = 256u << 10;

void append_capped(std::string& text, std::string_view more, size_t max_bytes) {
  text += more.substr(0, max_bytes - std::min(max_bytes, text.size()));
}

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

FramedCommand::FramedCommand(std::shared_ptr<Connection> connection, const std::string& script,
                             Options options, Deadline deadline, const std::stop_token& stop)
    : name_(connection->name()),
      channel_(Channel::exec(connection, framed_command(script, nonce_), deadline, stop)),
      out_(nonce_, options.expected_bytes),
      err_(nonce_),
      window_bytes_(options.window_bytes),
      buffer_(std::move(options.buffer)) {
  if (!buffer_) buffer_ = std::make_shared<std::vector<std::byte>>();
  if (buffer_->size() < std::max(kReadBytes, window_bytes_))
    buffer_->resize(std::max(kReadBytes, window_bytes_));
}

void FramedCommand::open_window(const FrameReader::Output& output) {
  size_t n = 0;
  channel_.connection().with(
      [&](ssh_session) { n = channel_.try_read(*buffer_, Stream::kOut, window_bytes_); });
  out_.feed(text_of(std::span(*buffer_).first(n)), output);
}

void FramedCommand::progress(std::span<const std::byte>& input, const FrameReader::Output& output,
                             Deadline deadline, const std::stop_token& stop) {
  std::array<std::byte, 16384> err;
  size_t out_bytes = 0, err_bytes = 0;
  channel_.connection().wait(
      [&](ssh_session) {
        bool moved = false;
        if (!input.empty() && channel_.takes_input()) {
          const size_t n = channel_.try_write(input.first(std::min(input.size(), kWriteBytes)));
          input = input.subspan(n);
          moved = n > 0;
        }
        err_bytes = channel_.try_read(err, Stream::kErr, 0);
        out_bytes = channel_.try_read(*buffer_, Stream::kOut, window_bytes_);
        at_end_ = out_bytes == 0 && err_bytes == 0 && channel_.at_end();
        return moved || at_end_ || out_bytes > 0 || err_bytes > 0;
      },
      deadline, stop, "waiting for a command");
  const auto keep = [&](std::string_view text) { append_capped(err_text_, text, kMaxErrorBytes); };
  err_.feed(text_of(std::span(err).first(err_bytes)), keep);
  out_.feed(text_of(std::span(*buffer_).first(out_bytes)), output);
  if (at_end_) {
    err_.finish(keep);
    out_.finish(output);
  }
}

void FramedCommand::give(std::span<const std::byte> input, const FrameReader::Output& output,
                         Deadline deadline, const std::stop_token& stop) {
  while (!input.empty() && !ended() && !at_end_) progress(input, output, deadline, stop);
}

bool FramedCommand::take(const FrameReader::Output& output, Deadline deadline,
                         const std::stop_token& stop) {
  std::span<const std::byte> nothing;
  if (!ended() && !at_end_) progress(nothing, output, deadline, stop);
  return !ended() && !at_end_;
}

int FramedCommand::exit_code() const {
  if (out_.exit_code()) return *out_.exit_code();
  std::string message = "a command at " + name_;
  if (out_.begun())
    message += " was interrupted: its effect is unknown";
  else
    message += " did not start; the log-in shell printed '" + log::printable(out_.noise(), 300) +
               "' and '" + log::printable(err_.noise(), 300) +
               "' (set shell: false for a host that only transfers files)";
  throw Error(ErrorKind::kRemote, message);
}

CommandResult run_script(const std::shared_ptr<Connection>& connection, const std::string& script,
                         std::string_view stdin_text, std::chrono::milliseconds timeout,
                         const std::stop_token& stop) {
  const Deadline deadline = deadline_in(timeout);
  CommandResult result;
  const auto keep = [&](std::string_view text) {
    append_capped(result.out, text, kMaxOutputBytes);
  };
  FramedCommand command(connection, script, {}, deadline, stop);
  command.give(std::as_bytes(std::span(stdin_text)), keep, deadline, stop);
  command.end_input();
  while (command.take(keep, deadline, stop)) continue;
  result.exit_code = command.exit_code();
  result.err = command.err();
  return result;
}

}  // namespace xffl::remote
