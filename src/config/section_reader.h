// Nodes of xffl.yaml -> structs, by the tables of fields; the reader collects all problems.
#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "keys.h"
#include "yaml.h"

namespace xffl::config {

/// `text` in a message: escaped, cut, in single quotes.
std::string in_quotes(std::string_view text);

class SectionReader {
 public:
  SectionReader(std::filesystem::path project_folder, std::vector<Problem>& problems)
      : project_folder_(std::move(project_folder)), problems_(problems) {}

  /// Sets the fields of `object`, the struct of `section`, that `mapping` names. `path` is the
  /// mapping's own key path, "facilities.alba". The caller reads the keys without a member.
  void read(const Node& mapping, const FieldTable& section, void* object, const std::string& path);

  /// Call with true before the keys of a facility on another machine, whose paths must be absolute.
  void set_remote(bool remote) { remote_ = remote; }

  /// True when `node` is a mapping; else adds a problem.
  bool expect_mapping(const Node& node, const Field& key, const std::string& path);

  /// The place of a key path in the file, or of the path's nearest parent in the file.
  Mark mark(std::string path) const;
  bool is_set(const std::string& path) const { return marks_.contains(path); }
  void note(const std::string& path, Mark mark) { marks_[path] = mark; }

  void problem(Mark mark, std::string message);

 private:
  void reject_unknown_keys(const Node& mapping, const FieldTable& section, const std::string& path,
                           std::set<std::string>& meant);
  void read_key(const Node& node, const Field& key, void* object, const std::string& path);
  // wrong_type() and invalid() add a problem and return no value.
  Value wrong_type(const Node& node, const Field& key, const std::string& path,
                   const std::string& hint = {});
  Value invalid(Mark mark, std::string message);
  Value scalar(const Node& node, const Field& key, const std::string& path);
  Value number(const Node& node, const Field& key, const std::string& path);
  Value boolean(const Node& node, const Field& key, const std::string& path);
  Value text(const Node& node, const Field& key, const std::string& path);
  Value choice(const Node& node, const Field& key, const std::string& path);
  Value absolute_path(const Node& node, const Field& key, const std::string& path);
  bool check_line(const Node& node, const std::string& path);
  void read_trainer(const Node& node, const Field& key, Facility& facility,
                    const std::string& path);
  void read_command(const Node& node, Facility& facility, const std::string& path);
  Value environment(const Node& node, const Field& key, const std::string& path);
  Value one_or_list(const Node& node, const Field& key, const std::string& path);
  void read_validation_sets(const Node& node, const Field& key, void* object,
                            const std::string& path);

  std::filesystem::path project_folder_;
  std::vector<Problem>& problems_;
  std::map<std::string, Mark> marks_;
  bool remote_ = false;
};

}  // namespace xffl::config
