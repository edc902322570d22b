#include "xffl/submit/template.h"

#include <algorithm>

#include "xffl/base/embedded_file.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/base/shell.h"

namespace xffl::submit {

std::span<const EmbeddedFile> shipped_templates();  // the files of templates/; generated

namespace {

constexpr size_t kMaxTemplateBytes = 1 << 20;
// Characters without a meaning to a shell or to the parser of #SBATCH lines.
constexpr std::string_view kPlainCharacters =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./:@%+=,-";
// Characters of an option in an #SBATCH line: no blank, quote or '#'.
constexpr std::string_view kOptionCharacters =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./:@%+=,&|*()[]~-";
constexpr std::string_view kBlank = " \t";
constexpr int kMaxPartDepth = 3;

// The verbs that print a queue manager's directives, and the beginning of their lines. An option of
// sbatch and flux is one word; an option of qsub is a flag with its values.
struct Directives {
  std::string_view verb, begin;
  std::string_view flag;  // each option begins with it
  std::string_view program;
};
constexpr Directives kDirectives[] = {
    {"sbatch", "#SBATCH ", "--", "sbatch"},
    {"gridengine", "#$ ", "-", "qsub"},
    {"pbs", "#PBS ", "-", "qsub"},
    {"flux", "# flux: ", "--", "flux batch"},
};

const Directives* directives_of(std::string_view verb) {
  for (const Directives& each : kDirectives)
    if (each.verb == verb) return &each;
  return nullptr;
}

struct Directive {
  std::string_view verb;  // "", "quote", "words", "lines", "include" or one of kDirectives
  std::string_view name;
};

std::string in_quotes(std::string_view text) { return "'" + log::printable(text, 100) + "'"; }

std::string_view trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

bool is_name(std::string_view text) {
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  };
  return !text.empty() && text.front() >= 'a' && text.front() <= 'z' &&
         std::all_of(text.begin(), text.end(), fits);
}

bool is_comment(std::string_view line) { return trim(line).starts_with('#'); }

/// True when text after `before` on the same line is inside shell quotes or after a backslash.
bool ends_in_quotes(std::string_view before) {
  char open = 0;
  for (size_t i = 0; i < before.size(); ++i) {
    const char c = before[i];
    if (c == '\\' && open != '\'') {
      if (++i == before.size()) return true;
    } else if (open != 0) {
      if (c == open) open = 0;
    } else if (c == '\'' || c == '"' || c == '`') {
      open = c;
    }
  }
  return open != 0;
}

/// Renders one template and tracks the line for messages.
class Renderer {
 public:
  Renderer(std::string_view origin, const TemplateValues& values)
      : origin_(origin), values_(values) {}

  std::string render(std::string_view text) {
    std::string out;
    while (!text.empty()) {
      ++line_;
      const size_t end = text.find('\n');
      render_line(text.substr(0, end), end == std::string_view::npos ? "" : "\n", out);
      text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    }
    return out;
  }

  void reject_unused(const std::set<std::string, std::less<>>& optional) const {
    for (const auto& [name, value] : values_) {
      if (used_.contains(name) || optional.contains(name)) continue;
      throw Error(ErrorKind::kConfig, std::string(origin_) + ": the value " + in_quotes(name) +
                                          " is never used; put {{" + verb_for(value) + name +
                                          "}} into the template");
    }
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const {
    throw Error(ErrorKind::kConfig,
                std::string(origin_) + ":" + std::to_string(line_) + ": " + problem);
  }

  static std::string verb_for(const TemplateValue& value) {
    return std::holds_alternative<std::string>(value) ? "quote " : "words ";
  }

  void render_line(std::string_view line, std::string_view line_end, std::string& out) {
    if (line.find_first_of(std::string_view("\r\0", 2)) != std::string_view::npos)
      fail("the template holds a carriage return or NUL; save it with Unix line ends");
    for (size_t open = line.find("{{"); open != std::string_view::npos; open = line.find("{{")) {
      const size_t close = line.find("}}", open);
      if (close == std::string_view::npos) fail("'{{' without '}}' on its line");
      const Directive directive = parse(line.substr(open + 2, close - open - 2));
      const std::string_view before = line.substr(0, open);
      const std::string_view after = line.substr(close + 2);
      const Directives* const options = directives_of(directive.verb);
      if (directive.verb == "lines" || directive.verb == "include" || options != nullptr) {
        if (!trim(before).empty() || !trim(after).empty() || (!out.empty() && out.back() != '\n'))
          fail("{{" + std::string(directive.verb) + " " + std::string(directive.name) +
               "}} must stand alone on its line");
        if (directive.verb == "lines")
          append_lines(directive.name, before, line_end, out);
        else if (options != nullptr)
          append_options(*options, directive.name, line_end, out);
        else
          append_part(directive.name, out);
        return;
      }
      out += before;
      out += inline_text(directive, line_so_far(out));
      line = after;
    }
    out += line;
    out += line_end;
  }

  static std::string line_so_far(const std::string& out) {
    const size_t newline = out.rfind('\n');
    return newline == std::string::npos ? out : out.substr(newline + 1);
  }

  Directive parse(std::string_view content) const {
    content = trim(content);
    const size_t space = content.find_first_of(kBlank);
    Directive directive{{}, content};
    if (space != std::string_view::npos) {
      directive = {content.substr(0, space), trim(content.substr(space))};
      if (directive.verb != "quote" && directive.verb != "words" && directive.verb != "lines" &&
          directive.verb != "include" && directives_of(directive.verb) == nullptr)
        fail("unknown directive " + in_quotes(directive.verb) + "; expected " + verbs());
    }
    if (!is_name(directive.name))
      fail("{{" + log::printable(content, 100) + "}} does not name a value (a-z, 0-9, '_')");
    return directive;
  }

  const TemplateValue& value(std::string_view name) {
    const auto found = values_.find(name);
    if (found == values_.end()) {
      std::string known;
      for (const auto& [other, ignored] : values_) known += (known.empty() ? "" : ", ") + other;
      fail("no value named " + in_quotes(name) + "; there are: " + known);
    }
    used_.emplace(name);
    return found->second;
  }

  const std::string& text(std::string_view name) {
    const auto* text = std::get_if<std::string>(&value(name));
    if (text == nullptr) fail(in_quotes(name) + " is a list; use {{words ...}} or {{lines ...}}");
    check_one_line(name, *text);
    return *text;
  }

  const std::vector<std::string>& list(std::string_view name) {
    const auto* list = std::get_if<std::vector<std::string>>(&value(name));
    if (list == nullptr) fail(in_quotes(name) + " is a string, not a list; use {{quote ...}}");
    for (const std::string& item : *list) check_one_line(name, item);
    return *list;
  }

  void check_one_line(std::string_view name, std::string_view text) const {
    if (text.find_first_of(std::string_view("\n\r\0", 3)) != std::string_view::npos)
      fail("the value " + in_quotes(name) +
           " holds a newline, carriage return or NUL: " + in_quotes(text));
  }

  std::string inline_text(const Directive& directive, std::string_view before) {
    if (directive.verb.empty()) return plain(directive.name);
    if (!is_comment(before) && ends_in_quotes(before))
      fail("{{" + std::string(directive.verb) + " " + std::string(directive.name) +
           "}} stands inside quotes, where it would not protect its value; remove them");
    if (directive.verb == "quote") return quote_for_shell(text(directive.name));
    return quote_argv_for_shell(list(directive.name));
  }

  const std::string& plain(std::string_view name) {
    const std::string& plain = text(name);
    if (plain.empty() || plain.find_first_not_of(kPlainCharacters) != std::string::npos)
      fail("the value " + in_quotes(name) + " is " + in_quotes(plain) +
           ", which has a meaning to a shell; use {{quote " + std::string(name) + "}}");
    return plain;
  }

  void append_lines(std::string_view name, std::string_view indent, std::string_view line_end,
                    std::string& out) {
    for (const std::string& item : list(name)) {
      if (is_comment(item))
        fail("a line of " + in_quotes(name) +
             " starts with '#', so it could be a batch directive: " + in_quotes(item));
      const size_t last = item.find_last_not_of('\\');
      if ((item.size() - (last == std::string::npos ? 0 : last + 1)) % 2 != 0)
        fail("a line of " + in_quotes(name) +
             " ends in '\\', so it would swallow the next line: " + in_quotes(item));
      out += indent;
      out += item;
      out += line_end;
    }
  }

  static std::string verbs() {
    std::string verbs = "quote, words, lines, include";
    for (const Directives& each : kDirectives)
      verbs += (&each == std::end(kDirectives) - 1 ? " or " : ", ") + std::string(each.verb);
    return verbs;
  }

  void append_options(const Directives& directives, std::string_view name,
                      std::string_view line_end, std::string& out) {
    const bool one_word = directives.flag == "--";
    for (const std::string& item : list(name)) {
      const bool blanks = item.ends_with(' ') || item.find("  ") != std::string::npos ||
                          (one_word && item.find(' ') != std::string::npos);
      if (!item.starts_with(directives.flag) || blanks ||
          item.find_first_not_of(std::string(kOptionCharacters) + " ") != std::string::npos)
        fail("an item of " + in_quotes(name) + " is not an option of " +
             std::string(directives.program) + ": " + in_quotes(item));
      out += directives.begin;
      out += item;
      out += line_end;
    }
  }

  // A shipped part is a template, too, and may include another part.
  void append_part(std::string_view name, std::string& out) {
    if (depth_ == kMaxPartDepth) fail("the parts include each other");
    const std::string part = "parts/" + std::string(name);
    const std::string origin = "the shipped template '" + part + "'";
    Renderer renderer(origin, values_);
    renderer.depth_ = depth_ + 1;
    out += renderer.render(shipped_template(part));
    used_.merge(renderer.used_);
  }

  std::string_view origin_;
  const TemplateValues& values_;
  std::set<std::string, std::less<>> used_;
  int line_ = 0;
  int depth_ = 0;  // of this part
};

}  // namespace

std::string render_template(std::string_view text, std::string_view origin,
                            const TemplateValues& values,
                            const std::set<std::string, std::less<>>& optional) {
  if (text.size() > kMaxTemplateBytes)
    throw Error(ErrorKind::kConfig, std::string(origin) + ": the template has " +
                                        std::to_string(text.size()) + " bytes; the limit is " +
                                        std::to_string(kMaxTemplateBytes));
  Renderer renderer(origin, values);
  std::string rendered = renderer.render(text);
  renderer.reject_unused(optional);
  return rendered;
}

std::string_view shipped_template(std::string_view kind) {
  std::string known;
  for (const EmbeddedFile& shipped : shipped_templates()) {
    if (shipped.name == kind) return shipped.text;
    known += (known.empty() ? "" : ", ") + std::string(shipped.name);
  }
  throw Error(ErrorKind::kConfig,
              "no job template is shipped for " + in_quotes(kind) + "; there are: " + known);
}

}  // namespace xffl::submit
