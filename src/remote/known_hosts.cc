#include "known_hosts.h"

#include <algorithm>
#include <sstream>
#include <system_error>

#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"

namespace xffl::remote {
namespace {

constexpr uint64_t kMaxFileBytes = 1u << 20;

struct Line {
  std::string text;
  std::vector<std::string> names;
  std::string key;
};

std::vector<Line> read_lines(const std::filesystem::path& file) {
  std::vector<Line> lines;
  std::error_code problem;
  const bool is_there = std::filesystem::exists(file, problem);
  if (problem) throw system_error("stat " + file.string(), problem.value());
  if (!is_there) return lines;
  std::istringstream in(read_file(file, kMaxFileBytes));
  for (std::string text; std::getline(in, text);) {
    Line line{text, {}, {}};
    const size_t space = text.find(' ');
    if (!text.empty() && text[0] != '#' && text[0] != '@' && space != std::string::npos) {
      std::istringstream names(text.substr(0, space));
      // No host has a name like the start of a comment or a marker: once first in its line, such a
      // name would hide the line's other hosts.
      for (std::string name; std::getline(names, name, ',');)
        if (!name.starts_with('#') && !name.starts_with('@')) line.names.push_back(name);
      line.key = text.substr(space + 1);
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

bool names(const Line& line, const std::string& label) {
  return std::find(line.names.begin(), line.names.end(), label) != line.names.end();
}

void write_with(const std::filesystem::path& file, const std::string& kept,
                const std::string& label, const PublicKey& key) {
  make_dirs(file.parent_path());
  write_file_atomic(file, kept + label + " " + key.line() + "\n");
}

}  // namespace

std::string host_label(const SshHost& host) {
  return host.port == 22 ? host.name : "[" + host.name + "]:" + std::to_string(host.port);
}

std::vector<PublicKey> pinned_keys(const std::filesystem::path& file, const SshHost& host) {
  const std::string label = host_label(host);
  std::vector<PublicKey> keys;
  for (const Line& line : read_lines(file)) {
    if (!names(line, label)) continue;
    const auto key = parse_public_key(line.key);
    if (!key)
      throw Error(ErrorKind::kCorrupt,
                  file.string() + ": the line of " + label + " has no public key: '" +
                      log::printable(line.text, 200) + "'; remove it, then run `xffl trust`");
    keys.push_back(*key);
  }
  return keys;
}

void pin_key(const std::filesystem::path& file, const SshHost& host, const PublicKey& key) {
  const std::string label = host_label(host);
  std::string text;
  for (const Line& line : read_lines(file)) {
    if (!names(line, label)) {
      text += line.text + "\n";
      continue;
    }
    std::string others;  // the line's other hosts keep the old key
    for (const std::string& name : line.names)
      if (name != label) others += (others.empty() ? "" : ",") + name;
    if (!others.empty()) text += others + " " + line.key + "\n";
  }
  write_with(file, text, label, key);
}

void pin_also(const std::filesystem::path& file, const SshHost& host, const PublicKey& key) {
  std::string text;
  for (const Line& line : read_lines(file)) text += line.text + "\n";
  write_with(file, text, host_label(host), key);
}

}  // namespace xffl::remote
