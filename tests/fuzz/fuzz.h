// Common parts of the fuzz targets.
//
// A target defines LLVMFuzzerTestOneInput(). It parses the input as a file or an answer of another
// machine, and checks the invariants of an accepted input. libFuzzer makes the inputs (preset
// fuzz); replay.cc runs the inputs of tests/fuzz/corpus/ in all other builds.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"
#include "xffl/base/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace xffl::fuzz {

/// Ends the program with `invariant` unless it holds: the input is then a finding.
inline void expect(bool holds, std::string_view invariant, std::string_view evidence = {}) {
  if (holds) return;
  std::fprintf(stderr, "invariant violated: %s\n%s\n", std::string(invariant).c_str(),
               std::string(evidence).c_str());
  std::abort();
}

/// True for text without control characters (C0 without newline, DEL, C1) and invalid UTF-8, which
/// could control a terminal.
inline bool is_harmless(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const size_t length = utf8_length(text, i);
    const auto byte = [&](size_t k) { return static_cast<unsigned char>(text[i + k]); };
    const bool control = (byte(0) < 0x20 && byte(0) != '\n') || byte(0) == 0x7f ||
                         (length == 2 && byte(0) == 0xc2 && byte(1) < 0xa0);
    if (length == 0 || control) return false;
    i += length;
  }
  return true;
}

/// The longest message of an error about an input.
inline constexpr size_t kMaxMessageBytes = 32u << 10;

/// Returns the result of `parse`; empty when `parse` rejects the input by an Error with a harmless
/// message. kInternal and every other exception are findings.
template <class Parse>
auto accepted(Parse&& parse) -> std::optional<decltype(parse())> {
  try {
    return std::forward<Parse>(parse)();
  } catch (const Error& error) {
    const std::string_view message = error.what();
    expect(error.kind() != ErrorKind::kInternal, "no input causes an internal error", message);
    expect(is_harmless(message), "a message has no control characters", message);
    expect(message.size() <= kMaxMessageBytes, "a message is short", message.substr(0, 1000));
    return std::nullopt;
  }
}

inline std::string_view text_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// A folder of this process; removed at its end.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "xffl-fuzz-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    path_ = name;
    log::set_console_level(log::Level::kOff);
  }
  ~Folder() {
    std::error_code none;
    std::filesystem::remove_all(path_, none);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

inline void write_bytes(const std::filesystem::path& path, std::string_view bytes) {
  const UniqueFd fd = open_file(path, O_WRONLY | O_CREAT | O_TRUNC);
  write_all(fd.get(), std::as_bytes(std::span(bytes)), path);
}

/// Takes fixed-size parts off the front of the input, for targets that choose settings by it.
class Choices {
 public:
  Choices(const uint8_t* data, size_t size) : rest_(text_of(data, size)) {}

  /// The next byte; 0 at the end.
  uint8_t byte() {
    if (rest_.empty()) return 0;
    const auto value = static_cast<uint8_t>(rest_.front());
    rest_.remove_prefix(1);
    return value;
  }
  std::string_view take(size_t count) {
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(taken.size());
    return taken;
  }
  std::string_view rest() const { return rest_; }

 private:
  std::string_view rest_;
};

}  // namespace xffl::fuzz
