// How it works: two spdlog loggers write to the console and to the file, each through a sink of
// xffl. The console sink writes a message and the live line in one call. The file sink ends a torn
// line and writes the next JSON line in one call.
//
// Only this file includes spdlog and fmt. LibTorch ships another fmt: keep LibTorch's headers off
// this file's include path. spdlog and fmt are header-only here: the trainer links neither library.
#include "xffl/base/log.h"

#define SPDLOG_FMT_EXTERNAL
#define FMT_HEADER_ONLY
#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <mutex>
#include <nlohmann/json.hpp>

#include "xffl/base/clock.h"
#include "xffl/base/console.h"
#include "xffl/base/file.h"
#include "xffl/base/scrub.h"
#include "xffl/base/text_width.h"
#include "xffl/base/utf8.h"

namespace xffl::log {
namespace {

constexpr const char* kEraseLine = "\r\033[K";  // ECMA-48, erase in line

// The entries follow the order of Level. The colours are ECMA-48 select graphic rendition (SGR).
struct LevelInfo {
  spdlog::level::level_enum level;
  const char* colour;
};
constexpr std::array<LevelInfo, 5> kLevels{{{spdlog::level::debug, "\033[36m"},
                                            {spdlog::level::info, "\033[32m"},
                                            {spdlog::level::warn, "\033[33m\033[1m"},
                                            {spdlog::level::err, "\033[31m\033[1m"},
                                            {spdlog::level::off, ""}}};

const LevelInfo& info_of(Level level) { return kLevels[static_cast<size_t>(level)]; }

const char* colour_of(spdlog::level::level_enum level) {
  return std::find_if(kLevels.begin(), kLevels.end(),
                      [&](const LevelInfo& each) { return each.level == level; })
      ->colour;
}

// Writes messages to stderr and, on a terminal, the live line below the messages.
class ConsoleSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  ConsoleSink() : base_sink(std::make_unique<spdlog::pattern_formatter>("%H:%M:%S %^%l%$ %v")) {}

  // The number of usable columns; 0 unless stderr is a terminal that moves its cursor.
  size_t width() const {
    if (!terminal_) return 0;
    return std::max<size_t>(window_size(STDERR_FILENO).columns, 2) - 1;  // a full line may wrap
  }

  void set_colours(Colours wish) {
    std::lock_guard lock(mutex_);
    colours_ = has_colours(STDERR_FILENO, wish);
  }

  void set_live_line(const std::string& text) {
    std::lock_guard lock(mutex_);
    wanted_live_line_ = text;
    show_live_line();
  }

  // Adds `by`, 1 or -1, to the number of suspensions. The sink shows the live line while the number
  // is 0.
  void suspend_live_line(int by) {
    std::lock_guard lock(mutex_);
    num_suspensions_ += by;
    show_live_line();
  }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    const std::string_view plain(line.data(), line.size());
    const size_t from = message.color_range_start, to = message.color_range_end;
    std::string text(plain);
    if (colours_)
      text = fmt::format("{}{}{}\033[m{}", plain.substr(0, from), colour_of(message.level),
                         plain.substr(from, to - from), plain.substr(to));
    if (!live_line_.empty()) text = kEraseLine + text + live_line_;
    write(text);
  }

  void flush_() override {}  // stderr has no buffer

  void show_live_line() {
    if (!terminal_) return;
    const std::string shown =
        num_suspensions_ > 0 ? "" : std::string(cut_to_width(wanted_live_line_, width()));
    if (shown == live_line_) return;
    live_line_ = shown;
    write(kEraseLine + shown);
  }

  // One write per line keeps the lines of several processes apart.
  static void write(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stderr); }

  const bool terminal_ = is_cursor_terminal(STDERR_FILENO);
  bool colours_ = has_colours(STDERR_FILENO);
  std::string live_line_;  // the text on the terminal; empty when hidden
  std::string wanted_live_line_;
  int num_suspensions_ = 0;  // the number of NoLiveLine objects
};

// Writes messages as lines of a file. spdlog's file sink buffers, and throws on a full disk.
class FileSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  FileSink() : base_sink(std::make_unique<spdlog::pattern_formatter>("%v")) {}

  void set_file(UniqueFd file) {
    std::lock_guard lock(mutex_);
    file_ = std::move(file);
    torn_ = false;
  }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    if (!file_) return;
    spdlog::memory_buf_t line;
    if (torn_) line.push_back('\n');
    formatter_->format(message, line);
    // One write per line keeps the lines of several processes apart. On a full disk the sink loses
    // the line; logging resumes when the disk has free space again.
    const ssize_t written = ::write(file_.get(), line.data(), line.size());
    if (written > 0) torn_ = static_cast<size_t>(written) < line.size();
  }

  void flush_() override {}  // the sink has no buffer

  UniqueFd file_;
  bool torn_ = false;  // the disk was full in the middle of the last line
};

struct Output {
  const std::shared_ptr<ConsoleSink> console_sink = std::make_shared<ConsoleSink>();
  const std::shared_ptr<FileSink> file_sink = std::make_shared<FileSink>();
  spdlog::logger console{"console", console_sink};
  spdlog::logger file{"file", file_sink};

  Output() { file.set_level(spdlog::level::off); }
};

Output& output() {
  static Output instance;  // a process has one stderr
  return instance;
}

std::string format_field(const Field& field) {
  struct Visitor {
    std::string operator()(const std::string& v) const {
      const std::string shown = printable(v);
      return shown.find(' ') == std::string::npos && !shown.empty() ? shown : "\"" + shown + "\"";
    }
    std::string operator()(int64_t v) const { return fmt::to_string(v); }
    std::string operator()(double v) const { return fmt::format("{:.6g}", v); }
    std::string operator()(bool v) const { return v ? "true" : "false"; }
  };
  return fmt::format("{}={}", field.key, std::visit(Visitor{}, field.value));
}

std::string json_line(spdlog::level::level_enum level, std::string_view event, Fields fields) {
  nlohmann::ordered_json line;
  line["time"] = format_utc(std::chrono::system_clock::now());
  line["level"] = fmt::to_string(spdlog::level::to_string_view(level));
  line["event"] = event;
  for (const Field& field : fields) {
    const auto* text = std::get_if<std::string>(&field.value);
    if (text != nullptr)
      line[std::string(field.key)] = scrubbed(*text);
    else
      std::visit([&](const auto& value) { line[std::string(field.key)] = value; }, field.value);
  }
  return line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

void emit(Level level, std::string_view event, Fields fields) {
  Output& out = output();
  const spdlog::level::level_enum spdlog_level = info_of(level).level;
  if (out.file.should_log(spdlog_level))
    out.file.log(spdlog_level, json_line(spdlog_level, event, fields));
  if (!out.console.should_log(spdlog_level)) return;
  std::string text(event);
  for (const Field& field : fields) text += "  " + format_field(field);
  out.console.log(spdlog_level, text);
}

// True for C0 and C1 controls, which control a terminal, and for Unicode's Bidi_Control characters,
// which reorder a line.
bool is_control(std::string_view character) {
  const auto byte = [&](size_t k) { return static_cast<unsigned char>(character[k]); };
  if (character.size() == 1) return byte(0) < 0x20 || byte(0) == 0x7f;
  if (character.size() == 2) return (byte(0) == 0xc2 && byte(1) < 0xa0) || character == "\u061c";
  if (character.size() != 3 || byte(0) != 0xe2) return false;
  return (byte(1) == 0x80 &&
          (byte(2) == 0x8e || byte(2) == 0x8f || (byte(2) >= 0xa8 && byte(2) <= 0xae))) ||
         (byte(1) == 0x81 && byte(2) >= 0xa6 && byte(2) <= 0xa9);
}

}  // namespace

void set_console_level(Level level) { output().console.set_level(info_of(level).level); }

void set_colours(Colours wish) { output().console_sink->set_colours(wish); }

size_t live_line_width() { return output().console_sink->width(); }

void set_live_line(const std::string& text) { output().console_sink->set_live_line(text); }

NoLiveLine::NoLiveLine() { output().console_sink->suspend_live_line(1); }
NoLiveLine::~NoLiveLine() { output().console_sink->suspend_live_line(-1); }

void set_file(const std::filesystem::path& path) {
  Output& out = output();
  UniqueFd file;
  if (!path.empty()) file = open_file(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
  out.file.set_level(file ? spdlog::level::debug : spdlog::level::off);
  out.file_sink->set_file(std::move(file));
}

void debug(std::string_view event, Fields fields) { emit(Level::kDebug, event, fields); }
void info(std::string_view event, Fields fields) { emit(Level::kInfo, event, fields); }
void warning(std::string_view event, Fields fields) { emit(Level::kWarning, event, fields); }
void error(std::string_view event, Fields fields) { emit(Level::kError, event, fields); }

std::string printable(std::string_view whole, size_t max_bytes) {
  // A secret may cross the end of the first `max_bytes`.
  const size_t num_scrubbed = std::min(whole.size(), max_bytes) + kLongestSecret;
  const std::string text = scrubbed(whole.substr(0, num_scrubbed));
  std::string shown;
  size_t i = 0;
  while (i < text.size() && shown.size() < max_bytes) {
    const size_t length = utf8_length(text, i);
    const std::string_view character =
        std::string_view(text).substr(i, std::max<size_t>(1, length));
    i += character.size();
    if (length > 0 && !is_control(character)) {
      shown += character;
      continue;
    }
    for (const char c : character) shown += fmt::format("\\x{:02X}", static_cast<unsigned char>(c));
  }
  if (i < text.size() || num_scrubbed < whole.size()) shown += "...";
  return shown;
}

}  // namespace xffl::log
