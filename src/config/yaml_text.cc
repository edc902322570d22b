#include "yaml_text.h"

#include <algorithm>
#include <array>

#include "xffl/base/utf8.h"

namespace xffl::config {
namespace {

constexpr size_t kMaxBytes = 1 << 20;

bool is_plain_scalar(std::string_view text) {
  // Words that YAML readers take for null or a boolean, or for a sign of their own, get quotes.
  constexpr std::array<std::string_view, 14> kWords{
      "null", "Null", "NULL", "yes", "Yes", "no", "No", "on", "off", "On", "Off", "y", "n", "-"};
  constexpr std::string_view kCharacters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./+-";
  if (text.empty() || text.front() == '-') return false;
  if (std::find(kWords.begin(), kWords.end(), text) != kWords.end()) return false;
  return text.find_first_not_of(kCharacters) == std::string_view::npos;
}

}  // namespace

Mark position(std::string_view text, size_t offset) { return Cursor(text).advance(offset); }

Mark Cursor::advance(size_t offset) {
  offset = std::min(offset, text_.size());
  if (offset < offset_) {
    offset_ = 0;
    mark_ = {1, 1};
  }
  for (; offset_ < offset; ++offset_) {
    if (text_[offset_] == '\n') {
      ++mark_.line;
      mark_.column = 1;
    } else if ((static_cast<unsigned char>(text_[offset_]) & 0xc0) != 0x80) {
      ++mark_.column;
    }
  }
  return mark_;
}

size_t end_of_quotes(std::string_view text, size_t start) {
  const char quote = text[start];
  for (size_t i = start + 1; i < text.size(); ++i) {
    if (quote == '"' && text[i] == '\\') {
      ++i;
    } else if (text[i] == quote) {
      if (quote == '"' || i + 1 >= text.size() || text[i + 1] != '\'') return i;
      ++i;  // '' is a quote inside the text
    }
  }
  return std::string_view::npos;
}

size_t next_quote(std::string_view text, size_t from) {
  for (size_t i = std::min(from, text.size()); i < text.size(); ++i) {
    if (text[i] == '"' || text[i] == '\'') return i;
    if (text[i] == '#') i = std::min(text.find('\n', i), text.size());
  }
  return text.size();
}

int tab_in_indentation(std::string_view text, int line) {
  for (int at = 1; at < line; ++at) {
    const size_t end = text.find('\n');
    if (end == std::string_view::npos) return 0;
    text.remove_prefix(end + 1);
  }
  const size_t first = text.find_first_not_of(' ');
  return line > 0 && first != std::string_view::npos && text[first] == '\t'
             ? static_cast<int>(first) + 1
             : 0;
}

bool check_text(std::string_view text, std::vector<Problem>& problems) {
  if (text.size() > kMaxBytes) {
    problems.push_back({0, 0,
                        "the file has " + std::to_string(text.size()) + " bytes, at most " +
                            std::to_string(kMaxBytes) + " are read"});
    return false;
  }
  for (size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool control = (byte < 0x20 && byte != '\n' && byte != '\t' &&
                          !(byte == '\r' && i + 1 < text.size() && text[i + 1] == '\n')) ||
                         byte == 0x7f;
    const size_t length = utf8_length(text, i);
    if (control || length == 0) {
      const Mark mark = position(text, i);
      problems.push_back(
          {mark.line, mark.column, control ? "a control character" : "a byte that is not UTF-8"});
      return false;
    }
    i += length;
  }
  return true;
}

std::string yaml_scalar(std::string_view text) {
  if (is_plain_scalar(text)) return std::string(text);
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      quoted += "\\x";
      quoted += kHex[byte >> 4];
      quoted += kHex[byte & 15];
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

std::string yaml_flow_list(const std::vector<std::string>& items) {
  std::string list = "[";
  for (const std::string& item : items) list += (list.size() > 1 ? ", " : "") + yaml_scalar(item);
  return list + "]";
}

}  // namespace xffl::config
