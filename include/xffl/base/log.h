// Log events: a constant name and fields, as a human line on stderr and a JSON line in the log
// file.
//
//   log::info("job submitted", {{"facility", name}, {"job", id}});
//
// No program parses a log; the journal holds the state. Thread-safe. The logger escapes control
// characters: external text cannot control a terminal or forge a log line.
#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <string>
#include <string_view>
#include <variant>

namespace xffl {
enum class Colours;  // console.h
}

namespace xffl::log {

struct Field {
  std::string_view key;
  std::variant<std::string, int64_t, double, bool> value;

  Field(std::string_view k, std::string v) : key(k), value(std::move(v)) {}
  Field(std::string_view k, std::string_view v) : key(k), value(std::string(v)) {}
  Field(std::string_view k, const char* v) : key(k), value(std::string(v)) {}
  Field(std::string_view k, bool v) : key(k), value(v) {}
  Field(std::string_view k, double v) : key(k), value(v) {}
  template <class Integer>
  requires std::is_integral_v<Integer> Field(std::string_view k, Integer v)
      : key(k), value(static_cast<int64_t>(v)) {}
};
using Fields = std::initializer_list<Field>;

enum class Level { kDebug, kInfo, kWarning, kError, kOff };

/// Sets the lowest level of messages on stderr (default kInfo).
void set_console_level(Level level);

/// Also appends every event of kDebug and above as a JSON line to `path`, created with mode 0600.
/// Throws kIo when the file cannot be opened. A later call replaces the file; an empty path closes
/// the file.
void set_file(const std::filesystem::path& path);

void debug(std::string_view event, Fields fields = {});
void info(std::string_view event, Fields fields = {});
void warning(std::string_view event, Fields fields = {});
void error(std::string_view event, Fields fields = {});

/// Whether messages on stderr have colours; kAuto unless called.
void set_colours(Colours wish);

/// Replaces the live line, a status line at the bottom of a terminal, by `text`, cut to the
/// terminal's width; an empty `text` removes the line. Later log lines appear above it. No effect
/// unless stderr is a terminal that moves its cursor. Thread-safe.
void set_live_line(const std::string& text);

/// The number of columns for a live line; 0 unless stderr is a terminal that moves its cursor.
size_t live_line_width();

/// Hides the live line during its lifetime, for a prompt to the user.
class NoLiveLine {
 public:
  NoLiveLine();
  NoLiveLine(const NoLiveLine&) = delete;
  ~NoLiveLine();
};

/// `text` without secrets (scrub.h) and with control characters and invalid UTF-8 as \xNN, cut
/// after `max_bytes`.
std::string printable(std::string_view text, size_t max_bytes = 2000);

}  // namespace xffl::log
