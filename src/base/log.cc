#include "xffl/base/log.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <mutex>
#include <nlohmann/json.hpp>

#include "xffl/base/clock.h"
#include "xffl/base/file.h"

namespace xffl::log {
namespace {

struct Output {
  std::atomic<Level> console_level{Level::kInfo};
  const bool colours = ::isatty(STDERR_FILENO) == 1 && std::getenv("NO_COLOR") == nullptr;
  std::mutex file_mutex;
  UniqueFd file;
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
  for (const Field& field : fields)
    std::visit([&](const auto& value) { line[std::string(field.key)] = value; }, field.value);
  // One write per line: lines of several processes do not mix. A log that cannot be written stops
  // nothing.
  const std::string text =
      line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  if (::write(out.file.get(), text.data(), text.size()) < 0) out.file = UniqueFd();
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
  // One write per line, as above.
  std::fwrite(text.data(), 1, text.size(), stderr);
}

// Length of the valid UTF-8 sequence at text[i], or 0.
size_t utf8_length(std::string_view text, size_t i) {
  const auto byte = [&](size_t k) { return static_cast<unsigned char>(text[k]); };
  const unsigned char first = byte(i);
  const size_t length = first < 0x80                    ? 1
                        : first >= 0xc2 && first < 0xe0 ? 2
                        : first >= 0xe0 && first < 0xf0 ? 3
                        : first >= 0xf0 && first < 0xf5 ? 4
                                                        : 0;
  if (length == 0 || i + length > text.size()) return 0;
  for (size_t k = i + 1; k < i + length; ++k)
    if ((byte(k) & 0xc0) != 0x80) return 0;
  // C1 controls (U+0080..U+009F) steer terminals as escape sequences do.
  if (first == 0xc2 && byte(i + 1) < 0xa0) return 0;
  return length;
}

}  // namespace

void set_console_level(Level level) { output().console_level = level; }

void set_file(const std::filesystem::path& path) {
  Output& out = output();
  UniqueFd file;
  if (!path.empty()) file = open_file(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
  std::lock_guard lock(out.file_mutex);
  out.file = std::move(file);
}

void debug(std::string_view event, Fields fields) { emit(Level::kDebug, event, fields); }
void info(std::string_view event, Fields fields) { emit(Level::kInfo, event, fields); }
void warning(std::string_view event, Fields fields) { emit(Level::kWarning, event, fields); }
void error(std::string_view event, Fields fields) { emit(Level::kError, event, fields); }

std::string printable(std::string_view text, size_t max_bytes) {
  std::string shown;
  size_t i = 0;
  while (i < text.size() && shown.size() < max_bytes) {
    const size_t length = utf8_length(text, i);
    const auto first = static_cast<unsigned char>(text[i]);
    if (length == 0 || first < 0x20 || first == 0x7f) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\x%02X", first);
      shown += escaped;
      ++i;
    } else {
      shown += text.substr(i, length);
      i += length;
    }
  }
  if (i < text.size()) shown += "...";
  return shown;
}

}  // namespace xffl::log
