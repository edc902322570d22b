// A job template: no value adds a line or a directive, and a quoted value is one word with the
// value's bytes.
#include <algorithm>

#include "fuzz.h"
#include "xffl/base/shell.h"
#include "xffl/submit/template.h"

using namespace xffl;
using submit::TemplateValues;

namespace {

size_t count_lines(std::string_view text) {
  return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
}

// The words of a line of quote_argv_for_shell(), as a POSIX shell reads it.
std::vector<std::string> words_of(std::string_view line) {
  std::vector<std::string> words(1);
  bool quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    if (quoted) {
      if (line[i] == '\'')
        quoted = false;
      else
        words.back() += line[i];
    } else if (line[i] == '\'') {
      quoted = true;
    } else if (line[i] == '\\') {
      fuzz::expect(++i < line.size(), "a backslash has a character", line);
      words.back() += line[i];
    } else if (line[i] == ' ') {
      words.emplace_back();
    } else {
      words.back() += line[i];
    }
  }
  fuzz::expect(!quoted, "quotes are closed", line);
  return words;
}

// A project's own template with fixed values: only {{lines}} and {{sbatch}} add lines.
void render_own_template(std::string_view text) {
  static const TemplateValues values{
      {"name", "xffl-p-0001"},
      {"folder", "/a b/it's"},
      {"argv", std::vector<std::string>{"run", "a 'b' $c", ""}},
      {"setup", std::vector<std::string>{"module load cuda"}},
      {"options", std::vector<std::string>{"--nodes=2"}},
  };
  static const std::set<std::string, std::less<>> optional{"name", "folder", "argv", "setup",
                                                           "options"};
  const auto script =
      fuzz::accepted([&] { return submit::render_template(text, "job.sbatch", values, optional); });
  if (!script) return;
  // A list of one item replaces its line by one line; argv has three items.
  const auto has = [&](std::string_view word) { return text.find(word) != std::string_view::npos; };
  const bool may_add = has("argv") && (has("lines") || has("sbatch"));
  fuzz::expect(may_add ? count_lines(*script) >= count_lines(text)
                       : count_lines(*script) == count_lines(text),
               "no value adds a line", *script);
}

// Hostile values in a fixed template.
void render_values(std::string_view input) {
  constexpr std::string_view kTemplate =
      "#!/bin/sh\n{{sbatch options}}\n{{lines setup}}\ncd {{quote folder}}\nexec {{words argv}}\n";
  std::vector<std::string> items;
  for (size_t begin = 0; begin <= input.size() && items.size() < 8;) {
    const size_t end = std::min(input.find('\x1e', begin), input.size());
    items.emplace_back(input.substr(begin, end - begin));
    begin = end + 1;
  }
  const TemplateValues values{{"folder", items.front()},
                              {"argv", items},
                              {"setup", std::vector<std::string>{items.back()}},
                              {"options", std::vector<std::string>{items.back()}}};
  for (const bool with_options : {false, true}) {
    TemplateValues used = values;
    // Most values are no option of sbatch: the other values are also rendered without it.
    if (!with_options) used["options"] = std::vector<std::string>{};
    const auto script =
        fuzz::accepted([&] { return submit::render_template(kTemplate, "job.sbatch", used, {}); });
    if (!script) continue;
    fuzz::expect(count_lines(*script) == 4 + (with_options ? 1 : 0), "no value adds a line",
                 *script);
    const size_t folder = script->rfind("\ncd ") + 4, argv = script->rfind("\nexec ") + 6;
    fuzz::expect(words_of(std::string_view(*script).substr(folder, argv - 6 - folder)) ==
                     std::vector{items.front()},
                 "a quoted value is one word", *script);
    fuzz::expect(
        words_of(std::string_view(*script).substr(argv, script->size() - 1 - argv)) == items,
        "an argument vector has its words", *script);
    const size_t directives = script->find("\n#SBATCH");
    fuzz::expect((directives != std::string::npos) == with_options, "no value adds a directive",
                 *script);
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Choices choices(data, size);
  if (choices.byte() % 2 == 0)
    render_own_template(choices.rest());
  else
    render_values(choices.rest());
  return 0;
}
