// Writes HTML. Markup is a literal of this program; all other text is escaped on its way.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace xffl::report {

// A tag, an attribute's name or a piece of markup. Only a constant of the program converts to it,
// so that no text of a run can become markup.
class Markup {
 public:
  consteval Markup(const char* text) : text_(text) {}
  constexpr std::string_view text() const { return text_; }

 private:
  std::string_view text_;
};

/// `text` as it stands in HTML, between tags or between double quotes: without secrets, control
/// characters as \xNN, and <, >, &, " and ' as references. At most `max_bytes` before the escapes.
std::string escaped(std::string_view text, size_t max_bytes = 2000);

class HtmlWriter {
 public:
  struct Attribute {
    Markup name;
    std::string value;
  };
  using Attributes = std::initializer_list<Attribute>;

  void open(Markup tag, Attributes attributes = {});
  void close();  // the tag opened last
  /// A tag without content.
  void empty(Markup tag, Attributes attributes = {});
  void text(std::string_view text, size_t max_bytes = 2000);
  void markup(Markup markup);
  /// open(), text() and close().
  void element(Markup tag, std::string_view text, Attributes attributes = {});
  /// <thead> with one row, and a row of the body.
  void head_row(const std::vector<std::string>& titles);
  void row(const std::vector<std::string>& cells);
  /// The document; every tag must be closed.
  std::string take();

 private:
  void write_tag(Markup tag, Attributes attributes, std::string_view end);

  std::string out_;
  std::vector<std::string_view> open_;
};

}  // namespace xffl::report
