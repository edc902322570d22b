// How it works: yaml-cpp's parser gives events with byte offsets, and TreeBuilder builds a tree
// from the events, because YAML::Node keeps neither duplicate keys nor quotes. TreeBuilder finds
// the end of quoted text in the source again, because yaml-cpp folds lines and accepts a missing
// quote.
#include "yaml.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <sstream>

#include "xffl/base/log.h"
#include "xffl/base/utf8.h"

namespace xffl::config {
namespace {

constexpr size_t kMaxBytes = 4 << 20;
constexpr size_t kMaxDepth = 32;
constexpr size_t kMaxProblems = 100;

/// The line and column of offsets that mostly grow: the cursor walks the text once. A column counts
/// characters.
class Cursor {
 public:
  explicit Cursor(std::string_view text) : text_(text) {}

  Mark advance(size_t offset) {
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

 private:
  std::string_view text_;
  size_t offset_ = 0;
  Mark mark_{1, 1};
};

Mark position(std::string_view text, size_t offset) { return Cursor(text).advance(offset); }

/// The closing quote of the quoted text that starts at `start`; npos for an unterminated quote.
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

/// The first quote at or after `from` outside comments; the text's size without a quote.
size_t next_quote(std::string_view text, size_t from) {
  for (size_t i = std::min(from, text.size()); i < text.size(); ++i) {
    if (text[i] == '"' || text[i] == '\'') return i;
    if (text[i] == '#') i = std::min(text.find('\n', i), text.size());
  }
  return text.size();
}

/// The column of a tab in the indentation of line number `line`; 0 without a tab.
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

/// False, with a problem, when the text is too long, not UTF-8, or has control characters.
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

/// Thrown to end the parse when the rest of the text has no meaning.
struct StopReading {};

class TreeBuilder final : public YAML::EventHandler {
 public:
  TreeBuilder(std::string_view text, std::vector<Problem>& problems)
      : text_(text), problems_(problems), cursor_(text) {}

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (num_documents_++ > 0)
      stop(place(mark), "a second document, or text after a list: one document is expected");
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    add(node(Node::Kind::kNull, mark, "?", anchor));
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    problem(place(mark), "aliases (*name) are not allowed: write the value itself");
    add(Node{.mark = place(mark)});
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    Node scalar = node(Node::Kind::kScalar, mark, tag, anchor);
    scalar.text = value;
    scalar.quoted = tag == "!";
    last_end_ = static_cast<size_t>(mark.pos) + value.size();
    if (scalar.quoted) check_quotes(static_cast<size_t>(mark.pos), scalar.mark);
    add(std::move(scalar));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(node(Node::Kind::kList, mark, tag, anchor));
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(node(Node::Kind::kMapping, mark, tag, anchor));
  }
  void OnMapEnd() override { close(); }

  /// Adds the parser's error, with a better line and column where they are known.
  void syntax_problem(const YAML::ParserException& error) {
    const std::string_view message = error.msg;
    // "\x04" is yaml-cpp's sign of the text's end, here after a backslash.
    if (message.find("EOF in scalar") != std::string_view::npos || message.ends_with('\x04')) {
      const size_t quote = next_quote(text_, last_end_);
      return problem(position(text_, quote), "this quote is never closed");
    }
    if (message.find("flow not found") != std::string_view::npos) {
      const bool is_list = message.find("sequence") != std::string_view::npos;
      const auto kind = is_list ? Node::Kind::kList : Node::Kind::kMapping;
      for (auto frame = open_.rbegin(); frame != open_.rend(); ++frame) {
        if (frame->node.kind != kind) continue;
        return problem(frame->node.mark, is_list ? "this '[' is never closed by ']'"
                                                 : "this '{' is never closed by '}'");
      }
    }
    const Mark mark = place(error.mark);
    // The parser may notice a tab a line later.
    for (const int line : {mark.line, mark.line - 1})
      if (const int tab = tab_in_indentation(text_, line); tab > 0)
        return problem({line, tab}, "a tab: YAML is indented with blanks");
    // yaml-cpp names the byte that it did not expect, which may be a part of a character.
    problem(mark, "not YAML: " + log::printable(message));
  }

  Node take_root() { return std::move(root_); }

 private:
  struct Frame {
    Node node;
    std::optional<Node> key;           // of a mapping, waiting for its value
    std::map<std::string, int> lines;  // the line on which each key of a mapping came first
  };

  Mark place(const YAML::Mark& mark) {
    return mark.pos < 0 ? Mark{} : cursor_.advance(static_cast<size_t>(mark.pos));
  }

  void problem(Mark mark, std::string message) {
    problems_.push_back({mark.line, mark.column, std::move(message)});
    if (problems_.size() >= kMaxProblems) throw StopReading{};
  }

  [[noreturn]] void stop(Mark mark, std::string message) {
    problems_.push_back({mark.line, mark.column, std::move(message)});
    throw StopReading{};
  }

  Node node(Node::Kind kind, const YAML::Mark& mark, const std::string& tag,
            YAML::anchor_t anchor) {
    Node made{.kind = kind, .mark = place(mark)};
    if (anchor != 0) problem(made.mark, "anchors (&name) are not allowed: write the value itself");
    if (!tag.empty() && tag != "?" && tag != "!")
      problem(made.mark, "tags (" + log::printable(tag, 80) + ") are not allowed");
    return made;
  }

  void check_quotes(size_t start, Mark mark) {
    const char quote = start < text_.size() ? text_[start] : '\0';
    if (quote != '"' && quote != '\'') return;  // a block scalar
    const size_t end = end_of_quotes(text_, start);
    if (end == std::string_view::npos) stop(mark, "this quote is never closed");
    last_end_ = end + 1;
    if (text_.substr(start, end - start).find('\n') != std::string_view::npos)
      problem(mark, "quoted text must end on the line where it starts: is its closing quote lost?");
  }

  void open(Node container) {
    if (open_.size() >= kMaxDepth)
      stop(container.mark, "nested deeper than " + std::to_string(kMaxDepth) + " levels");
    open_.push_back({std::move(container), std::nullopt, {}});
  }

  void close() {
    Node done = std::move(open_.back().node);
    open_.pop_back();
    add(std::move(done));
  }

  void add(Node child) {
    if (open_.empty()) {
      root_ = std::move(child);
      return;
    }
    Frame& frame = open_.back();
    if (frame.node.kind == Node::Kind::kList) {
      frame.node.items.push_back(std::move(child));
    } else if (!frame.key) {
      if (child.kind != Node::Kind::kScalar)
        problem(child.mark, "expected a key before ':', found " + describe(child));
      frame.key = std::move(child);
    } else {
      add_pair(frame, std::move(child));
    }
  }

  void add_pair(Frame& frame, Node value) {
    Node key = std::move(*frame.key);
    frame.key.reset();
    if (key.kind != Node::Kind::kScalar) return;
    const auto [first, is_new] = frame.lines.emplace(key.text, key.mark.line);
    if (!is_new)
      return problem(key.mark, "duplicate key '" + log::printable(key.text, 80) +
                                   "': it is already on line " + std::to_string(first->second));
    if (value.kind == Node::Kind::kNull) value.mark = key.mark;  // else the mark of the next key
    frame.node.keys.push_back(std::move(key));
    frame.node.items.push_back(std::move(value));
  }

  std::string_view text_;
  std::vector<Problem>& problems_;
  Cursor cursor_;
  std::vector<Frame> open_;
  Node root_;
  size_t last_end_ = 0;  // end of the last scalar in the text
  int num_documents_ = 0;
};

}  // namespace

const Node* Node::find(std::string_view key) const {
  for (size_t i = 0; i < keys.size(); ++i)
    if (keys[i].text == key) return &items[i];
  return nullptr;
}

Node read_yaml(std::string_view text, std::vector<Problem>& problems) {
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  if (!check_text(text, problems)) return {};
  std::istringstream stream{std::string(text)};
  TreeBuilder builder(text, problems);
  try {
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const YAML::ParserException& error) {
    try {
      builder.syntax_problem(error);
    } catch (const StopReading&) {
    }
    return {};
  } catch (const YAML::Exception& error) {
    problems.push_back({0, 0, "not YAML: " + log::printable(error.msg)});
    return {};
  } catch (const StopReading&) {
    return {};
  }
  Node root = builder.take_root();
  if (root.kind == Node::Kind::kNull) root = Node{.kind = Node::Kind::kMapping, .mark = {1, 1}};
  return root;
}

std::string describe(const Node& node) {
  switch (node.kind) {
    case Node::Kind::kNull:
      return "nothing";
    case Node::Kind::kList:
      return "a list";
    case Node::Kind::kMapping:
      return "a mapping";
    case Node::Kind::kScalar:
      break;
  }
  return (node.quoted ? "the quoted text '" : "'") + log::printable(node.text, 80) + "'";
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
