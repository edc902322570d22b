#include "xffl/base/log.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <mutex>
#include <nlohmann/json.hpp>

#include "xffl/base/clock.h"
#include "xffl/base/file.h"
#include "xffl/base/live_line.h"
#include "xffl/base/scrub.h"
#include "xffl/base/utf8.h"

namespace xffl::log {
namespace {

struct Output {
  std::atomic<Level> console_level{Level::kInfo};
  const bool terminal = ::isatty(STDERR_FILENO) == 1;
  const bool colours = terminal && std::getenv("NO_COLOR") == nullptr;
  std::mutex console_mutex;
  std::string live_line;  // as shown; empty: none
  std::string wanted_live_line;
  int no_live_line = 0;  // how many NoLiveLine live
  std::mutex file_mutex;
  UniqueFd file;
  bool torn = false;  // its last line is not whole: the disk was full
};

Output& output() {
  static Output instance;  // the process's stderr is one, too
  return instance;
}

struct LevelLook {
  const char* name;
  const char* colour;  // ECMA-48, select graphic rendition
};

LevelLook look_of(Level level) {
  switch (level) {
    case Level::kDebug:
      return {"debug", "\033[36m"};
    case Level::kWarning:
      return {"warning", "\033[33m\033[1m"};
    case Level::kError:
      return {"error", "\033[31m\033[1m"};
    case Level::kInfo:
    case Level::kOff:
      break;
  }
  return {"info", "\033[32m"};
}

std::string format_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

std::string format_field(const Field& field) {
  struct Visitor {
    std::string operator()(const std::string& v) const {
      const std::string shown = printable(v);
      return shown.find(' ') == std::string::npos && !shown.empty() ? shown : "\"" + shown + "\"";
    }
    std::string operator()(int64_t v) const { return std::to_string(v); }
    std::string operator()(double v) const { return format_number(v); }
    std::string operator()(bool v) const { return v ? "true" : "false"; }
  };
  return std::string(field.key) + "=" + std::visit(Visitor{}, field.value);
}

std::string local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  char text[16] = "";
  if (::localtime_r(&now, &parts) != nullptr) std::strftime(text, sizeof text, "%H:%M:%S", &parts);
  return text;
}

void write_json_line(Output& out, Level level, std::string_view event, Fields fields) {
  std::lock_guard lock(out.file_mutex);
  if (!out.file) return;
  nlohmann::ordered_json line;
  line["time"] = format_utc(std::chrono::system_clock::now());
  line["level"] = look_of(level).name;
  line["event"] = event;
  for (const Field& field : fields) {
    const auto* text = std::get_if<std::string>(&field.value);
    if (text != nullptr)
      line[std::string(field.key)] = scrubbed(*text);
    else
      std::visit([&](const auto& value) { line[std::string(field.key)] = value; }, field.value);
  }
  // One write per line: lines of several processes do not mix. A log that cannot be written stops
  // nothing, and goes on when it can be again.
  const std::string text =
      (out.torn ? "\n" : "") +
      line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  const ssize_t written = ::write(out.file.get(), text.data(), text.size());
  if (written > 0) out.torn = static_cast<size_t>(written) < text.size();
}

void emit(Level level, std::string_view event, Fields fields) {
  Output& out = output();
  write_json_line(out, level, event, fields);
  if (level < out.console_level) return;
  const LevelLook look = look_of(level);
  std::string text = local_time() + " ";
  text += out.colours ? std::string(look.colour) + look.name + "\033[m" : look.name;
  text.append(" ").append(event);
  for (const Field& field : fields) text += "  " + format_field(field);
  text += "\n";
  std::lock_guard lock(out.console_mutex);
  if (!out.live_line.empty()) text = "\r\033[K" + text + out.live_line;  // ECMA-48, erase in line
  // One write per line, as above.
  std::fwrite(text.data(), 1, text.size(), stderr);
}

// As many characters as fit into so many columns.
std::string cut(const std::string& text, size_t columns) {
  size_t characters = 0;
  for (size_t i = 0; i < text.size(); ++i)
    if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80 && ++characters > columns)
      return text.substr(0, i);
  return text;
}

// Characters that steer a terminal or reorder a line: C0 and C1 controls, and those that set the
// direction of writing (Unicode's Bidi_Control).
bool steers(std::string_view character) {
  const auto byte = [&](size_t k) { return static_cast<unsigned char>(character[k]); };
  if (character.size() == 1) return byte(0) < 0x20 || byte(0) == 0x7f;
  if (character.size() == 2) return (byte(0) == 0xc2 && byte(1) < 0xa0) || character == "\u061c";
  if (character.size() != 3 || byte(0) != 0xe2) return false;
  return (byte(1) == 0x80 &&
          (byte(2) == 0x8e || byte(2) == 0x8f || (byte(2) >= 0xa8 && byte(2) <= 0xae))) ||
         (byte(1) == 0x81 && byte(2) >= 0xa6 && byte(2) <= 0xa9);
}

}  // namespace

void set_console_level(Level level) { output().console_level = level; }

size_t live_line_width() {
  if (!output().terminal) return 0;
  winsize size{};
  const bool known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
  return (known ? size.ws_col : 80) - 1u;  // a full line may wrap
}

namespace {

void show_live_line(Output& out) {  // holding console_mutex
  const std::string shown =
      out.no_live_line > 0 ? "" : cut(out.wanted_live_line, live_line_width());
  if (shown == out.live_line) return;
  out.live_line = shown;
  const std::string written = "\r\033[K" + shown;
  std::fwrite(written.data(), 1, written.size(), stderr);
}

void suspend_live_line(int by) {
  Output& out = output();
  std::lock_guard lock(out.console_mutex);
  out.no_live_line += by;
  if (out.terminal) show_live_line(out);
}

}  // namespace

void set_live_line(const std::string& text) {
  Output& out = output();
  std::lock_guard lock(out.console_mutex);
  out.wanted_live_line = text;
  if (out.terminal) show_live_line(out);
}

NoLiveLine::NoLiveLine() { suspend_live_line(1); }
NoLiveLine::~NoLiveLine() { suspend_live_line(-1); }

void set_file(const std::filesystem::path& path) {
  Output& out = output();
  UniqueFd file;
  if (!path.empty()) file = open_file(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
  std::lock_guard lock(out.file_mutex);
  out.file = std::move(file);
  out.torn = false;
}

void debug(std::string_view event, Fields fields) { emit(Level::kDebug, event, fields); }
void info(std::string_view event, Fields fields) { emit(Level::kInfo, event, fields); }
void warning(std::string_view event, Fields fields) { emit(Level::kWarning, event, fields); }
void error(std::string_view event, Fields fields) { emit(Level::kError, event, fields); }

std::string printable(std::string_view whole, size_t max_bytes) {
  // A secret may begin in what is shown.
  const size_t looked_at = std::min(whole.size(), max_bytes) + kLongestSecret;
  const std::string text = scrubbed(whole.substr(0, looked_at));
  std::string shown;
  size_t i = 0;
  while (i < text.size() && shown.size() < max_bytes) {
    const size_t length = utf8_length(text, i);
    const std::string_view character =
        std::string_view(text).substr(i, std::max<size_t>(1, length));
    i += character.size();
    if (length > 0 && !steers(character)) {
      shown += character;
      continue;
    }
    for (const char c : character) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\x%02X", static_cast<unsigned char>(c));
      shown += escaped;
    }
  }
  if (i < text.size() || looked_at < whole.size()) shown += "...";
  return shown;
}

}  // namespace xffl::log
