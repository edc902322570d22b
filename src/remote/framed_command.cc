#include "framed_command.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "upload_flow.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"

namespace xffl::remote {
namespace {

constexpr size_t kMaxNoiseBytes = 1u << 20;
constexpr size_t kMaxCommandBytes = 120'000;  // Linux limits one argument to 128 KiB
// The longest second mark: newline, nonce (32), " end ", 3 digits, newline.
constexpr size_t kHeldBytes = 64;

// True for a character without a meaning to any shell, inside quotes and outside.
bool is_plain(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
         std::string_view(" _./:@%+,=-").find(c) != std::string_view::npos;
}

void append_encoded(std::string& text, char c) {
  if (is_plain(c)) {
    text += c;
    return;
  }
  const auto byte = static_cast<unsigned char>(c);
  text += "\\0";
  text += static_cast<char>('0' + (byte >> 6));
  text += static_cast<char>('0' + (byte >> 3 & 7));
  text += static_cast<char>('0' + (byte & 7));
}

constexpr size_t kMaxOutputBytes = 16u << 20;
constexpr size_t kMaxErrorBytes = 1u << 20;
constexpr size_t kPipeReadBytes = 256u << 10;
constexpr size_t kPipeWriteBytes = 256u << 10;

void append_capped(std::string& text, std::string_view more, size_t max_bytes) {
  // A string that grows doubles its memory: 16 MiB and 32 MiB at once for the last bytes of 16 MiB.
  if (text.size() + more.size() > max_bytes / 4 && text.capacity() < max_bytes)
    text.reserve(max_bytes);
  text += more.substr(0, max_bytes - std::min(max_bytes, text.size()));
}

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

std::string framed_command(std::string_view script, std::string_view nonce) {
  const std::string mark(nonce);
  const auto print = [](const std::string& text, const std::string& rest) {
    return "printf '" + text + "\\n'" + rest + ";printf '" + text + "\\n'" + rest + " >&2;";
  };
  std::string whole = print(mark + " begin", "");
  whole += "(" + std::string(script) + "\n);c=$?;";
  whole += print("\\n" + mark + " end %d", " $c");
  std::string command = "exec sh -c 'eval \"$(printf %b \"";
  for (const char c : whole) append_encoded(command, c);
  command += "\")\"'";
  if (command.size() > kMaxCommandBytes)
    throw Error(ErrorKind::kConfig, "a command for a facility has " +
                                        std::to_string(command.size()) + " bytes; the limit is " +
                                        std::to_string(kMaxCommandBytes));
  return command;
}

FrameReader::FrameReader(std::string_view nonce, uint64_t expected_bytes)
    : begin_(std::string(nonce) + " begin\n"),
      end_("\n" + std::string(nonce) + " end "),
      expected_bytes_(expected_bytes) {}

void FrameReader::feed(std::string_view bytes, const Output& output) {
  if (exit_code_) return;  // ignores text after the second mark
  // Most bytes of a download pass without a copy.
  if (begun_ && output_bytes_ + held_.size() + bytes.size() <= expected_bytes_ &&
      bytes.size() > kHeldBytes) {
    pass(held_.size(), output);
    const std::string_view sure = bytes.substr(0, bytes.size() - kHeldBytes);
    output_bytes_ += sure.size();
    output(sure);
    held_ = bytes.substr(sure.size());
    return;
  }
  held_ += bytes;
  if (!begun_) find_begin();
  if (!begun_) return;
  const bool search = output_bytes_ + held_.size() > expected_bytes_;
  if (search && find_end(expected_bytes_ - std::min(output_bytes_, expected_bytes_), output))
    return;
  if (held_.size() > kHeldBytes) pass(held_.size() - kHeldBytes, output);
}

void FrameReader::finish(const Output& output) {
  if (begun_ && !exit_code_) find_end(0, output);
}

void FrameReader::find_begin() {
  const size_t at = held_.find(begin_);
  if (at == std::string::npos) {
    if (held_.size() > kMaxNoiseBytes)
      throw Error(ErrorKind::kRemote,
                  "the log-in shell printed more than 1 MiB before the command began");
    noise_ = held_.substr(0, 2000);
    return;
  }
  noise_ = held_.substr(0, std::min<size_t>(at, 2000));
  held_.erase(0, at + begin_.size());
  begun_ = true;
}

bool FrameReader::find_end(size_t from, const Output& output) {
  // Output may hold the start of a mark without its end.
  for (size_t at = held_.find(end_, from); at != std::string::npos; at = held_.find(end_, at + 1)) {
    const size_t digits = at + end_.size();
    const size_t line_end = held_.find('\n', digits);
    if (line_end == std::string::npos || line_end == digits || line_end > digits + 3) continue;
    const std::string code = held_.substr(digits, line_end - digits);
    if (code.find_first_not_of("0123456789") != std::string::npos) continue;
    exit_code_ = std::stoi(code);
    pass(at, output);
    held_.clear();
    return true;
  }
  return false;
}

void FrameReader::pass(size_t count, const Output& output) {
  if (count == 0) return;
  output_bytes_ += count;
  output(std::string_view(held_).substr(0, count));
  held_.erase(0, count);
}

FramedCommand::FramedCommand(std::shared_ptr<Connection> connection, const std::string& script,
                             Options options, Deadline deadline, const std::stop_token& stop)
    : name_(connection->name()),
      channel_(Channel::exec(connection, framed_command(script, nonce_), deadline, stop)),
      out_(nonce_, options.expected_bytes),
      err_(nonce_),
      window_bytes_(options.window_bytes),
      buffer_(std::move(options.buffer)) {
  if (!buffer_) buffer_ = std::make_shared<std::vector<std::byte>>();
  set_window(window_bytes_);
}

// Commands that share a buffer have windows of similar sizes: a factor of two is no reason for a
// new buffer.
void FramedCommand::set_window(size_t window_bytes) {
  window_bytes_ = window_bytes;
  const size_t wanted = std::max(kPipeReadBytes, window_bytes_);
  if (buffer_->size() < wanted || buffer_->size() > 2 * wanted)
    *buffer_ = std::vector<std::byte>(wanted);
}

void FramedCommand::open_window(const FrameReader::Output& output) {
  size_t n = 0;
  channel_.connection().with(
      [&](ssh_session) { n = channel_.try_read(*buffer_, Stream::kOut, window_bytes_); });
  out_.feed(text_of(std::span(*buffer_).first(n)), output);
}

bool FramedCommand::move(std::span<const std::byte>& input, const FrameReader::Output& output,
                         Deadline deadline, const std::stop_token& stop) {
  std::array<std::byte, 16384> err;
  size_t out_bytes = 0, err_bytes = 0;
  const bool in_time = channel_.connection().wait_until(
      [&](ssh_session) {
        bool moved = false;
        if (!input.empty() && channel_.takes_input()) {
          const size_t n = channel_.try_write(input.first(std::min(input.size(), kPipeWriteBytes)));
          input = input.subspan(n);
          moved = n > 0;
        }
        err_bytes = channel_.try_read(err, Stream::kErr, 0);
        out_bytes = channel_.try_read(*buffer_, Stream::kOut, window_bytes_);
        at_end_ = out_bytes == 0 && err_bytes == 0 && channel_.at_end();
        return moved || at_end_ || out_bytes > 0 || err_bytes > 0;
      },
      deadline, stop, "waiting for a command");
  if (!in_time) return false;
  const auto keep = [&](std::string_view text) { append_capped(err_text_, text, kMaxErrorBytes); };
  err_.feed(text_of(std::span(err).first(err_bytes)), keep);
  out_.feed(text_of(std::span(*buffer_).first(out_bytes)), output);
  if (at_end_) {
    err_.finish(keep);
    out_.finish(output);
  }
  return true;
}

void FramedCommand::fail_in_time() const {
  throw Error(ErrorKind::kRemote, name_ + " did not answer in time while waiting for a command");
}

void FramedCommand::give(std::span<const std::byte> input, const FrameReader::Output& output,
                         Deadline deadline, const std::stop_token& stop) {
  while (!input.empty() && runs())
    if (!move(input, output, deadline, stop)) fail_in_time();
}

bool FramedCommand::take(const FrameReader::Output& output, Deadline deadline,
                         const std::stop_token& stop) {
  std::span<const std::byte> nothing;
  if (runs() && !move(nothing, output, deadline, stop)) fail_in_time();
  return runs();
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

CommandResult run_moving_script(const std::shared_ptr<Connection>& connection,
                                const std::string& script, std::string_view stdin_text,
                                const std::string& activity, const std::stop_token& stop) {
  CommandResult result;
  UploadFlow flow({connection}, activity);
  // Output bytes are delivered bytes.
  const auto keep = [&](std::string_view text) {
    append_capped(result.out, text, kMaxOutputBytes);
    flow.accepted(text.size());
  };
  FramedCommand command(connection, script, {}, deadline_in(connection->timeouts().operation),
                        stop);
  auto input = std::as_bytes(std::span(stdin_text));
  while (!input.empty() && command.runs()) {
    flow.wait_for_room(stop);
    const auto part = input.first(std::min(input.size(), kPipeWriteBytes));
    auto rest = part;
    command.move(rest, keep, deadline_in(kCheckInterval), stop);
    flow.accepted(part.size() - rest.size());
    input = input.subspan(part.size() - rest.size());
  }
  command.end_input();
  for (auto none = std::span<const std::byte>(); command.runs();) {
    command.move(none, keep, deadline_in(kCheckInterval), stop);
    flow.check();
  }
  result.exit_code = command.exit_code();
  result.err = command.err();
  return result;
}

}  // namespace xffl::remote
