// The output of a framed command: the result does not depend on the pieces in which the stream
// arrives, and a framed script has no character with a meaning to a shell.
#include <algorithm>

#include "framed_command.h"
#include "fuzz.h"

using namespace xffl;
using remote::FrameReader;

namespace {

constexpr std::string_view kNonce = "0123456789abcdef0123456789abcdef";

struct Read {
  std::string output;
  std::optional<int> exit_code;
  bool begun = false;
  bool operator==(const Read&) const = default;
};

Read read_stream(std::string_view stream, uint64_t expected_bytes, size_t piece) {
  Read read;
  FrameReader reader(kNonce, expected_bytes);
  const auto keep = [&](std::string_view text) { read.output += text; };
  for (size_t at = 0; at < stream.size(); at += piece) reader.feed(stream.substr(at, piece), keep);
  reader.finish(keep);
  fuzz::expect(reader.noise().size() <= 2000, "little of the log-in shell's text is kept");
  read.exit_code = reader.exit_code();
  read.begun = reader.begun();
  return read;
}

// The script in a framed command: the inverse of printf's %b.
std::string decoded(std::string_view encoded) {
  std::string text;
  while (!encoded.empty()) {
    if (encoded.front() != '\\') {
      text += encoded.front();
      encoded.remove_prefix(1);
      continue;
    }
    fuzz::expect(encoded.size() >= 5 && encoded[1] == '0', "an escape is \\0NNN", encoded);
    int value = 0;
    for (const char digit : encoded.substr(2, 3)) {
      fuzz::expect(digit >= '0' && digit <= '7', "an escape has octal digits", encoded);
      value = value * 8 + (digit - '0');
    }
    text += static_cast<char>(value);
    encoded.remove_prefix(5);
  }
  return text;
}

void check_framing(std::string_view script) {
  const auto command = fuzz::accepted([&] { return remote::framed_command(script, kNonce); });
  if (!command) return;
  constexpr std::string_view kHead = "exec sh -c 'eval \"$(printf %b \"", kTail = "\")\"'";
  fuzz::expect(command->starts_with(kHead) && command->ends_with(kTail), "a frame's ends");
  const std::string_view inner = std::string_view(*command).substr(
      kHead.size(), command->size() - kHead.size() - kTail.size());
  fuzz::expect(inner.find_first_of("'\"`$!*?[]{}()<>|;&#~^\n\r\t") == std::string_view::npos,
               "no character of the script has a meaning to a shell", inner);
  fuzz::expect(decoded(inner).find("(" + std::string(script) + "\n)") != std::string::npos,
               "the script arrives unchanged", inner);
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Choices choices(data, size);
  const uint64_t expected_bytes = choices.byte();
  const size_t piece = 1 + choices.byte();
  const std::string_view stream = choices.rest();
  const Read whole = read_stream(stream, expected_bytes, std::max<size_t>(1, stream.size()));
  fuzz::expect(whole.output.size() <= stream.size(), "output comes from the stream");
  fuzz::expect(!whole.exit_code || (*whole.exit_code >= 0 && *whole.exit_code <= 999),
               "an exit code has three digits");
  fuzz::expect(!whole.exit_code || whole.begun, "a command that ended has begun");
  const Read pieces = read_stream(stream, expected_bytes, piece);
  fuzz::expect(pieces.exit_code == whole.exit_code, "pieces do not change the exit code");
  fuzz::expect(pieces.begun == whole.begun, "pieces do not change the begin");
  fuzz::expect(!whole.exit_code || pieces.output == whole.output,
               "pieces do not change the output");
  check_framing(stream);
  return 0;
}
