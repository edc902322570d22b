#include "man_pages.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdio>
#include <regex>
#include <sstream>
#include <vector>

#include "command_tree.h"
#include "xffl/base/error.h"
#include "xffl/base/utf8.h"

namespace xffl::manual {
namespace {

// One character of text. man(7) prints "-", "'", "`", "^" and "~" as typographic characters unless
// they are escaped; a user copies ASCII characters from the page.
std::string escaped(char c) {
  switch (c) {
    case '\\':
      return "\\e";
    case '-':
      return "\\-";
    case '\'':
      return "\\(aq";
    case '`':
      return "\\(ga";
    case '^':
      return "\\(ha";
    case '~':
      return "\\(ti";
    case '"':
      return "\\(dq";
    default:
      return static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? " " : std::string(1, c);
  }
}

// A character outside of ASCII: \[u20AC].
std::string escaped(std::string_view character) {
  uint32_t code = static_cast<unsigned char>(character[0]) & (0xff >> (character.size() + 1));
  for (const char c : character.substr(1))
    code = code << 6 | (static_cast<unsigned char>(c) & 0x3f);
  char text[16];
  std::snprintf(text, sizeof text, "\\[u%04X]", code);
  return text;
}

std::string bold(const std::string& text) { return "\\fB" + text + "\\fR"; }
std::string italic(const std::string& text) { return "\\fI" + text + "\\fR"; }

std::string join(const std::vector<std::string>& parts, const std::string& separator) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : separator) + part;
  return text;
}

// A help text as a sentence. The first word gets a capital if it is a word and no name of a file.
std::string sentence(std::string text) {
  static const std::regex kWord("[a-z']+[,:;]?( .*)?");
  if (text.empty()) return text;
  if (std::regex_match(text, kWord))
    text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  if (std::string_view(".:!?").find(text.back()) == std::string_view::npos) text += '.';
  return text;
}

// The words of a command line, such as "xffl config validate".
std::string words_of(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  return (parent == nullptr ? "" : words_of(*parent) + " ") + command.get_name();
}

std::string page_name(const CLI::App& command) {
  std::string name = words_of(command);
  std::replace(name.begin(), name.end(), ' ', '-');
  return name;
}

std::string heading(const std::string& title) { return ".SH " + title + "\n"; }

// A paragraph with a tag in front.
std::string tagged(const std::string& tag, const std::string& text) {
  return ".TP\n" + tag + "\n" + (text.empty() ? "\\&" : text) + "\n";
}

// An option's or argument's value in a synopsis, such as FOLDER or auto|always|never.
std::string value(const CLI::Option& option) {
  const std::vector<std::string> fixed = choices(option);
  if (fixed.empty()) return italic(roff(value_type(option)));
  std::vector<std::string> escaped_values;
  for (const std::string& one : fixed) escaped_values.push_back(bold(roff(one)));
  return join(escaped_values, "|");
}

std::string meaning(const CLI::Option& option) {
  std::string text = roff(sentence(option.get_description()));
  std::smatch range;
  const std::string type = option.get_type_name();
  static const std::regex kRange(":[A-Z]+ in \\[(.+) - (.+)\\]");
  if (std::regex_search(type, range, kRange))
    text += " From " + roff(range[1].str()) + " to " + roff(range[2].str()) + ".";
  if (!option.get_default_str().empty())
    text += " Default: " + roff(option.get_default_str()) + ".";
  if (option.get_required()) text += " Required.";
  std::vector<std::string> excluded;
  for (const CLI::Option* other : option.get_excludes())
    excluded.push_back(bold(
        roff(other->get_positional() ? other->get_single_name() : dashed_names(*other).back())));
  std::sort(excluded.begin(), excluded.end());  // the set is sorted by address
  if (!excluded.empty()) text += " Not together with " + join(excluded, ", ") + ".";
  return text.starts_with(' ') ? text.substr(1) : text;
}

std::string argument_list(const CLI::App& command) {
  std::string text;
  for (const CLI::Option* argument : arguments(command)) {
    const std::string name = italic(roff(argument->get_single_name())) +
                             (argument->get_items_expected_max() > 1 ? "..." : "");
    text += argument->get_required() ? " " + name : " [" + name + "]";
  }
  return text;
}

// A line for the command and for each command below.
std::vector<std::string> synopsis(const CLI::App& command) {
  const std::string name = bold(roff(words_of(command)));
  const std::string options = " [" + italic("options") + "]";
  if (command.get_parent() == nullptr)
    return {name + options + " " + italic("command") + " [" + italic("argument") + "...]\n"};
  if (command.get_prefix_command()) return {name + " [" + italic("argument") + "...]\n"};
  std::vector<std::string> lines;
  if (command.get_require_subcommand_min() == 0)
    lines.push_back(name + options + argument_list(command) + "\n");
  for (const CLI::App* below : subcommands(command))
    for (const std::string& line : synopsis(*below)) lines.push_back(line);
  return lines;
}

// The options of `command` without those of `outer`, such as -v.
std::string option_list(const CLI::App& command, const CLI::App* outer) {
  std::string text;
  for (const CLI::Option* argument : arguments(command))
    text += tagged(italic(roff(argument->get_single_name())), meaning(*argument));
  for (const CLI::Option* option : named_options(command)) {
    std::vector<std::string> names;
    for (const std::string& name : dashed_names(*option)) names.push_back(bold(roff(name)));
    if (outer != nullptr && outer->get_option_no_throw(dashed_names(*option).back()) != nullptr &&
        outer->get_option_no_throw(dashed_names(*option).back())->get_description() ==
            option->get_description())
      continue;
    std::string tag = join(names, ", ");
    if (option->get_items_expected_max() > 0)
      tag +=
          option->get_items_expected_min() > 0 ? " " + value(*option) : " [" + value(*option) + "]";
    text += tagged(tag, meaning(*option));
  }
  return text;
}

// Lines that keep their breaks and blanks.
std::string verbatim(const std::string& text) {
  std::string lines = ".PP\n.nf\n";
  std::istringstream input(text);
  for (std::string line; std::getline(input, line);)
    lines += (line.empty() ? "\\&" : roff(line)) + "\n";
  return lines + ".fi\n";
}

// Without the links.
std::string plain(const std::string& markdown) {
  static const std::regex kLink("\\[([^\\]]*)\\]\\([^)]*\\)");
  return std::regex_replace(markdown, kLink, "$1");
}

std::vector<std::string> cells_of(const std::string& row) {
  std::vector<std::string> cells;
  std::istringstream input(row.substr(1));
  for (std::string cell; std::getline(input, cell, '|');) {
    const size_t begin = cell.find_first_not_of(' ');
    cells.push_back(begin == std::string::npos
                        ? ""
                        : cell.substr(begin, cell.find_last_not_of(' ') - begin + 1));
  }
  return cells;
}

// The table and the text of the section whose heading has the program's name in backticks.
std::string exit_status(std::string_view markdown, const std::string& program) {
  std::istringstream input{std::string(markdown)};
  std::string text;
  bool inside = false;
  for (std::string line; std::getline(input, line);) {
    if (line.starts_with("#")) inside = line.find('`' + program + '`') != std::string::npos;
    if (!inside || line.empty() || line.starts_with("#")) continue;
    if (!line.starts_with("|")) {
      text += (text.ends_with(".PP\n") ? "" : ".PP\n") + roff(plain(line)) + "\n";
      continue;
    }
    const std::vector<std::string> cells = cells_of(line);
    if (cells.size() != 3 || cells[0].find_first_not_of("0123456789") != std::string::npos)
      continue;
    text += tagged(bold(roff(cells[0])) + (cells[1].empty() ? "" : " (" + roff(cells[1]) + ")"),
                   roff(plain(cells[2])));
  }
  if (text.empty())
    throw Error(ErrorKind::kInternal, "docs/reference/exit_codes.md has no section for " + program);
  return text;
}

std::string title(const CLI::App& command) {
  std::string name = page_name(command);
  std::string capitals = name;
  for (char& c : capitals) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return ".\\\" Generated by the command man.\n.TH " + roff(capitals) + " 1 \"\" \"xffl " +
         roff(XFFL_VERSION) + "\" \"Manual of xffl\"\n" + heading("NAME") + roff(name) + " \\- " +
         roff(command.get_description()) + "\n" + heading("SYNOPSIS") +
         join(synopsis(command), ".br\n") + heading("DESCRIPTION") +
         roff(sentence(command.get_description())) + "\n" +
         (command.get_footer().empty() ? "" : verbatim(command.get_footer()));
}

std::string references(const std::vector<std::string>& pages) {
  std::vector<std::string> texts;
  for (const std::string& page : pages) texts.push_back(bold(roff(page)) + "(1)");
  return heading("SEE ALSO") + join(texts, ",\n") + "\n";
}

std::string page(const CLI::App& command, const CLI::App& app) {
  std::string text = title(command);
  const std::string options = option_list(command, nullptr);
  if (!options.empty()) text += heading("OPTIONS") + options;
  const auto below = subcommands(command);
  if (!below.empty()) text += heading("COMMANDS");
  for (const CLI::App* one : below)
    text += ".SS \"" + roff(words_of(*one)) + "\"\n" + roff(sentence(one->get_description())) +
            "\n" + option_list(*one, &command);
  return text + heading("EXIT STATUS") + "See " + bold(roff(page_name(app))) + "(1).\n" +
         references({page_name(app)});
}

std::string main_page(const CLI::App& app, std::string_view exit_codes) {
  std::string text =
      title(app) + heading("OPTIONS") + option_list(app, nullptr) + heading("COMMANDS");
  std::vector<std::string> pages;
  for (const CLI::App* one : subcommands(app)) {
    text += tagged(bold(roff(page_name(*one))) + "(1)", roff(sentence(one->get_description())));
    pages.push_back(page_name(*one));
  }
  return text + heading("EXIT STATUS") + exit_status(exit_codes, app.get_name()) +
         references(pages);
}

}  // namespace

std::string roff(std::string_view text) {
  std::string result;
  bool inside = false;  // a code span
  for (size_t i = 0; i < text.size();) {
    const size_t length = std::max<size_t>(utf8_length(text, i), 1);
    const bool starts_line = result.empty() || result.back() == '\n';
    if (text[i] == '`' && (inside || text.find('`', i + 1) != std::string_view::npos)) {
      inside = !inside;
      result += inside ? "\\fB" : "\\fR";
    } else if (length > 1) {
      result += escaped(text.substr(i, length));
    } else if (text[i] == '\n') {
      result += '\n';
    } else {
      result += (starts_line && text[i] == '.' ? "\\&" : "") +
                (static_cast<unsigned char>(text[i]) < 0x80 ? escaped(text[i]) : "?");
    }
    i += length;
  }
  return result;
}

std::map<std::string, std::string> man_pages(const CLI::App& app, std::string_view exit_codes) {
  std::map<std::string, std::string> pages;
  pages[page_name(app) + ".1"] = main_page(app, exit_codes);
  for (const CLI::App* command : subcommands(app)) {
    const std::string file = page_name(*command) + ".1";
    pages[file] = page(*command, app);
    for (const std::string& alias : command->get_aliases())
      pages[page_name(app) + "-" + alias + ".1"] = ".so man1/" + file + "\n";
  }
  return pages;
}

}  // namespace xffl::manual
