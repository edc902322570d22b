#include "section_reader.h"

#include <algorithm>
#include <array>
#include <regex>
#include <span>

#include "scalars.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/base/shell.h"

namespace xffl::config {
namespace {

constexpr size_t kMaxLineBytes = 4000;

std::string join(const std::string& path, std::string_view key) {
  return path.empty() ? std::string(key) : path + "." + std::string(key);
}

/// The section that has a key of this name, such as "training.schedule"; empty for an unknown name.
std::string home_of(std::string_view name, const FieldTable& section, const std::string& path = {},
                    int depth = 0) {
  if (depth == 0 && section.find(name) != nullptr) return "the file's top level";
  for (const Field& key : section.yaml) {
    if (key.table == nullptr || depth > 3) continue;
    const std::string inner =
        join(path, key.name) + (key.type == Type::kFacilities ? ".<name>" : "");
    if (key.table->find(name) != nullptr) return "'" + inner + "'";
    if (auto found = home_of(name, *key.table, inner, depth + 1); !found.empty()) return found;
  }
  return {};
}

bool is_variable_name(std::string_view text) {
  const auto is_letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  };
  return !text.empty() && is_letter(text.front()) && text.size() <= 200 &&
         std::all_of(text.begin(), text.end(),
                     [&](char c) { return is_letter(c) || (c >= '0' && c <= '9'); });
}

bool ends_in_backslash(std::string_view line) {
  const size_t last = line.find_last_not_of('\\');
  return (line.size() - (last == std::string_view::npos ? 0 : last + 1)) % 2 != 0;
}

constexpr size_t kMaxPatternBytes = 1024;  // std::regex recurses over its text

bool matches(std::string_view pattern, const std::string& text) {
  if (text.size() > kMaxPatternBytes) return false;
  return std::regex_match(text, std::regex(pattern.begin(), pattern.end()));
}

/// The optimal string alignment distance; ignores case and the difference of '-' and '_'.
size_t distance(std::string_view a, std::string_view b) {
  const auto same = [](char x, char y) {
    const auto fold = [](char c) {
      return c == '-' ? '_' : c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    };
    return fold(x) == fold(y);
  };
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), now(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    now[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      now[j] =
          std::min({last[j] + 1, now[j - 1] + 1, last[j - 1] + (same(a[i - 1], b[j - 1]) ? 0 : 1)});
      if (i > 1 && j > 1 && same(a[i - 1], b[j - 2]) && same(a[i - 2], b[j - 1]))
        now[j] = std::min(now[j], before[j - 2] + 1);
    }
    before.swap(last);
    last.swap(now);
  }
  return last[b.size()];
}

bool is_part(std::string_view text, std::string_view whole) {
  return text.size() >= 4 && whole.find(text) != std::string_view::npos;
}

/// The candidate nearest to `text` by distance(), or an empty string when no candidate is near.
std::string nearest(std::string_view text, std::span<const std::string_view> candidates) {
  if (text.size() > 100) return {};
  std::string_view best;
  size_t best_distance = std::max<size_t>(1, std::min<size_t>(3, text.size() / 3)) + 1;
  for (const std::string_view candidate : candidates) {
    const size_t steps = distance(text, candidate);
    if (steps < best_distance) {
      best = candidate;
      best_distance = steps;
    }
  }
  for (const std::string_view candidate : candidates)
    if (best.empty() && (is_part(text, candidate) || is_part(candidate, text))) best = candidate;
  return std::string(best);
}

/// ": did you mean 'x'?", or nothing.
std::string did_you_mean(std::string_view text, std::span<const std::string_view> candidates) {
  const std::string meant = nearest(text, candidates);
  return meant.empty() ? "" : ": did you mean '" + meant + "'?";
}

}  // namespace

std::string in_quotes(std::string_view text) { return "'" + log::printable(text, 80) + "'"; }

void SectionReader::problem(Mark mark, std::string message) {
  problems_.push_back({mark.line, mark.column, std::move(message)});
}

Mark SectionReader::mark(std::string path) const {
  for (;;) {
    if (const auto found = marks_.find(path); found != marks_.end()) return found->second;
    const size_t dot = path.rfind('.');
    if (dot == std::string::npos) return {};
    path.resize(dot);
  }
}

void SectionReader::read(const Node& mapping, const FieldTable& section, void* object,
                         const std::string& path) {
  std::set<std::string> meant;
  reject_unknown_keys(mapping, section, path, meant);
  for (const Field& key : section.yaml) {
    const std::string key_path = join(path, key.name);
    const Node* node = mapping.find(key.name);
    if (node == nullptr) {
      if (key.required && !meant.contains(std::string(key.name)))
        problem(mapping.mark, "missing required key " + in_quotes(key_path) + ": " +
                                  std::string(key.help) + "; expected " + expectation(key));
      continue;
    }
    note(key_path, node->mark);
    if (key.applies != nullptr && !key.applies(object))
      problem(node->mark,
              in_quotes(key_path) + " has a meaning only with " + std::string(key.condition));
    else if (node->kind == Node::Kind::kNull)
      problem(node->mark, in_quotes(key_path) + " has no value: expected " + expectation(key));
    else
      read_key(*node, key, object, key_path);
  }
}

void SectionReader::reject_unknown_keys(const Node& mapping, const FieldTable& section,
                                        const std::string& path, std::set<std::string>& meant) {
  for (const Node& key : mapping.keys) {
    if (section.find(key.text) != nullptr) continue;
    const std::vector<std::string_view> names = section.names();
    std::string message = "unknown key " + in_quotes(key.text);
    if (!path.empty()) message += " in " + in_quotes(path);
    const std::string near = nearest(key.text, names);
    const std::string home = home_of(key.text, experiment_keys());
    if (!home.empty()) {
      message += ": it belongs in " + home;
    } else if (!near.empty()) {
      message += ": did you mean '" + near + "'?";
      if (mapping.find(near) == nullptr) meant.insert(near);
    } else {
      message += "; there are: ";
      for (const std::string_view name : names)
        message += (name == names.front() ? "" : ", ") + std::string(name);
    }
    problem(key.mark, std::move(message));
  }
}

void SectionReader::read_key(const Node& node, const Field& key, void* object,
                             const std::string& path) {
  Value value;
  switch (key.type) {
    case Type::kSection:
      if (expect_mapping(node, key, path) && key.inner != nullptr)
        read(node, *key.table, key.inner(object), path);
      return;
    case Type::kFacilities:
      expect_mapping(node, key, path);
      return;
    case Type::kTrainer:
      return read_trainer(node, key, *static_cast<Facility*>(object), path);
    case Type::kEnvironment:
      value = environment(node, key, path);
      break;
    case Type::kSitePaths:
    case Type::kHostPaths:
    case Type::kTexts:
      value = one_or_list(node, key, path);
      break;
    case Type::kValidationSets:
      return read_validation_sets(node, key, object, path);
    default:
      value = scalar(node, key, path);
  }
  if (!std::holds_alternative<std::monostate>(value)) key.set(object, value);
}

bool SectionReader::expect_mapping(const Node& node, const Field& key, const std::string& path) {
  if (node.kind == Node::Kind::kMapping) return true;
  wrong_type(node, key, path);
  return false;
}

Value SectionReader::wrong_type(const Node& node, const Field& key, const std::string& path,
                                const std::string& hint) {
  return invalid(node.mark, in_quotes(path) + " should be " + expectation(key) + ", found " +
                                describe(node) + (hint.empty() ? "" : ": " + hint));
}

Value SectionReader::invalid(Mark mark, std::string message) {
  problem(mark, std::move(message));
  return {};
}

Value SectionReader::scalar(const Node& node, const Field& key, const std::string& path) {
  if (node.kind != Node::Kind::kScalar) return wrong_type(node, key, path);
  if (!check_line(node, path)) return {};
  switch (key.type) {
    case Type::kInteger:
    case Type::kNumber:
    case Type::kDuration:
    case Type::kSize:
      return number(node, key, path);
    case Type::kBoolean:
      return boolean(node, key, path);
    case Type::kChoice:
      return choice(node, key, path);
    case Type::kHostPath:
    case Type::kSitePath:
      return absolute_path(node, key, path);
    case Type::kProjectName:
      try {
        return ProjectName(node.text).str();
      } catch (const Error& error) {
        return invalid(node.mark, error.what());
      }
    default:
      return text(node, key, path);
  }
}

Value SectionReader::choice(const Node& node, const Field& key, const std::string& path) {
  if (std::find(key.choices.begin(), key.choices.end(), node.text) != key.choices.end())
    return node.text;
  return invalid(node.mark, in_quotes(path) + " should be " + expectation(key) + ", found " +
                                in_quotes(node.text) + did_you_mean(node.text, key.choices));
}

bool SectionReader::check_line(const Node& node, const std::string& path) {
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  if (std::any_of(node.text.begin(), node.text.end(), is_control)) {
    problem(node.mark,
            in_quotes(path) + " holds a line break or control character: " + in_quotes(node.text));
    return false;
  }
  if (node.text.size() > kMaxLineBytes) {
    problem(node.mark, in_quotes(path) + " has " + std::to_string(node.text.size()) +
                           " bytes, at most " + std::to_string(kMaxLineBytes) + " are allowed");
    return false;
  }
  return true;
}

Value SectionReader::absolute_path(const Node& node, const Field& key, const std::string& path) {
  if (node.kind != Node::Kind::kScalar || node.text.empty()) return wrong_type(node, key, path);
  if (!check_line(node, path)) return {};
  if (node.text.front() == '~')
    return invalid(node.mark, in_quotes(path) +
                                  ": '~' is not expanded, write the whole path instead of " +
                                  in_quotes(node.text));
  if (remote_ && key.type == Type::kSitePath && node.text.front() != '/')
    return invalid(node.mark, in_quotes(path) +
                                  " is a path at another machine and should start with '/', " +
                                  "found " + in_quotes(node.text));
  // At a facility reached on this machine, paths may start at the project folder.
  const std::filesystem::path whole = (project_folder_ / node.text).lexically_normal();
  try {
    return RemotePath(whole.string()).str();
  } catch (const Error& error) {
    return invalid(node.mark, in_quotes(path) + ": " + error.what());
  }
}

void SectionReader::read_trainer(const Node& node, const Field& key, Facility& facility,
                                 const std::string& path) {
  static constexpr std::array<std::string_view, 2> kNames{"command", "program"};
  if (node.kind == Node::Kind::kScalar && node.text == "builtin") return;
  if (node.kind == Node::Kind::kScalar && node.text == "bundle") {
    facility.trainer_bundle = true;
    return;
  }
  if (node.kind != Node::Kind::kMapping || node.keys.size() != 1) {
    const bool other = node.kind == Node::Kind::kScalar;
    wrong_type(node, key, path, other ? "for a program of your own write {command: [...]}" : "");
    return;
  }
  const Node& value = node.items.front();
  const std::string name = node.keys.front().text;
  note(path + "." + name, value.mark);
  if (name == "command") return read_command(value, facility, path + ".command");
  if (name == "program") {
    const Value program =
        absolute_path(value, {.name = "program", .type = Type::kSitePath}, path + ".program");
    if (const auto* text = std::get_if<std::string>(&program)) facility.trainer_program = *text;
    return;
  }
  problem(node.keys.front().mark,
          "unknown key " + in_quotes(name) + " in " + in_quotes(path) +
              (did_you_mean(name, kNames).empty() ? "; there are: command, program"
                                                  : did_you_mean(name, kNames)));
}

void SectionReader::read_command(const Node& node, Facility& facility, const std::string& path) {
  if (node.kind != Node::Kind::kList || node.items.empty())
    return problem(node.mark, in_quotes(path) + " should be a list of words such as " +
                                  "[python3, ./train.py], found " + describe(node));
  for (const Node& word : node.items) {
    if (word.kind != Node::Kind::kScalar)
      return problem(word.mark, in_quotes(path) + " should hold words, found " + describe(word));
    if (!check_line(word, path)) return;
    const bool at_project = word.text.starts_with("./") || word.text.starts_with("../");
    if (at_project && remote_)
      problem(word.mark, in_quotes(path) + ": " + in_quotes(word.text) +
                             " starts at the project's folder, which is not on that machine");
    facility.trainer_command.push_back(
        at_project ? (project_folder_ / word.text).lexically_normal().string() : word.text);
  }
  const std::string& program = facility.trainer_command.front();
  if (program.empty() || program.front() == '-')
    problem(node.items.front().mark,
            in_quotes(path) + " should start with a program, found " + in_quotes(program));
}

Value SectionReader::environment(const Node& node, const Field& key, const std::string& path) {
  if (node.kind != Node::Kind::kList && node.kind != Node::Kind::kMapping)
    return wrong_type(node, key, path);
  std::vector<std::string> lines;
  for (size_t i = 0; i < node.items.size(); ++i) {
    const Node& item = node.items[i];
    const bool named = node.kind == Node::Kind::kMapping;
    if (item.kind != Node::Kind::kScalar) {
      problem(item.mark,
              in_quotes(path) + " should hold single lines, found " + describe(item) +
                  (named || item.kind != Node::Kind::kMapping ? "" : ": put it in quotes"));
    } else if (!check_line(item, path)) {
      continue;
    } else if (named && !is_variable_name(node.keys[i].text)) {
      problem(node.keys[i].mark,
              in_quotes(node.keys[i].text) + " cannot be the name of an environment variable");
    } else if (named) {
      Node line = item;
      line.text = "export " + node.keys[i].text + "=" + quote_for_shell(item.text);
      if (check_line(line, path)) lines.push_back(line.text);  // the run's copy has these lines
    } else if (item.text.find_first_not_of(' ') != std::string::npos &&
               item.text[item.text.find_first_not_of(' ')] == '#') {
      problem(item.mark, "a line of " + in_quotes(path) +
                             " starts with '#', so it could be a batch directive");
    } else if (ends_in_backslash(item.text)) {
      problem(item.mark,
              "a line of " + in_quotes(path) + " ends in a backslash: single lines only");
    } else {
      lines.push_back(item.text);
    }
  }
  return lines;
}

Value SectionReader::one_or_list(const Node& node, const Field& key, const std::string& path) {
  const bool is_text = key.type == Type::kTexts, needed = key.type == Type::kSitePaths;
  const bool is_empty = node.kind == Node::Kind::kList && node.items.empty();
  if (node.kind == Node::Kind::kMapping || (is_empty && (needed || key.min > 0)))
    return wrong_type(node, key, path, is_empty ? "it is empty" : "");
  std::vector<std::string> all;
  const auto append = [&](const Node& item) {
    const Type type = needed ? Type::kSitePath : Type::kHostPath;
    const Value value = is_text ? text(item, key, path)
                                : absolute_path(item, {.name = key.name, .type = type}, path);
    if (const auto* one = std::get_if<std::string>(&value)) all.push_back(*one);
  };
  if (node.kind == Node::Kind::kScalar) append(node);
  for (const Node& item : node.items) append(item);
  return all;
}

void SectionReader::read_validation_sets(const Node& node, const Field& key, void* object,
                                         const std::string& path) {
  if (!expect_mapping(node, key, path)) return;
  for (size_t i = 0; i < node.items.size(); ++i) {
    const std::string& name = node.keys[i].text;
    if (!job::validate_set_name(name).empty())
      problem(node.keys[i].mark, in_quotes(name) + " cannot name a validation set: expected 1 to " +
                                     "64 of A-Z, a-z, 0-9, '.', '_' and '-'");
    const Value value =
        absolute_path(node.items[i], {.name = key.name, .type = Type::kSitePath}, join(path, name));
    if (const auto* text = std::get_if<std::string>(&value))
      *static_cast<job::ValidationSet*>(key.append(object)) = {name, *text};
  }
}

Value SectionReader::number(const Node& node, const Field& key, const std::string& path) {
  if (node.quoted) return wrong_type(node, key, path, "write it without quotes");
  Value value;
  double size = 0;
  std::string hint;
  const auto take = [&](int64_t integer, std::string_view multiple_hint) {
    size = static_cast<double>(integer);
    if (integer % key.multiple == 0)
      value = integer;
    else
      hint = multiple_hint;
  };
  if (key.type == Type::kNumber) {
    if (const auto number = parse_number(node.text)) value = size = *number;
  } else if (key.type == Type::kInteger) {
    if (const auto integer = parse_integer(node.text))
      take(*integer, "");
    else
      hint = integer_hint(node.text);
  } else if (const auto bytes = key.type == Type::kSize ? parse_size(node.text) : std::nullopt) {
    take(*bytes, "");
  } else if (const auto duration =
                 key.type == Type::kDuration ? parse_duration(node.text) : std::nullopt) {
    take(duration->count(), "write whole seconds");
  } else if (parse_number(node.text)) {
    hint = "add the unit";
  }
  const bool in_range = size >= key.min && (key.below_max ? size < key.max : size <= key.max);
  if (!std::holds_alternative<std::monostate>(value) && in_range) return value;
  return wrong_type(node, key, path, hint);
}

Value SectionReader::boolean(const Node& node, const Field& key, const std::string& path) {
  const auto flag = node.quoted ? std::nullopt : parse_boolean(node.text);
  if (flag) return *flag;
  return wrong_type(node, key, path, node.quoted ? "write it without quotes" : "");
}

Value SectionReader::text(const Node& node, const Field& key, const std::string& path) {
  if (node.kind != Node::Kind::kScalar || node.text.empty()) return wrong_type(node, key, path);
  if (!check_line(node, path)) return {};
  if (!key.pattern.empty() && !matches(key.pattern, node.text)) return wrong_type(node, key, path);
  const std::string mistake = key.validate == nullptr ? std::string() : key.validate(node.text);
  if (mistake.empty()) return node.text;
  return invalid(node.mark, in_quotes(path) + ": " + in_quotes(node.text) + " " + mistake);
}

}  // namespace xffl::config
