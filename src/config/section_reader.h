// Nodes of xffl.yaml -> structs, by the table of keys; every problem is noted, none ends the
// reading.
#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "keys.h"
#include "yaml_reader.h"

namespace xffl::config {

/// `text` in a message: escaped, cut, in single quotes.
std::string in_quotes(std::string_view text);

class SectionReader {
 public:
  SectionReader(std::filesystem::path project_folder, std::vector<Problem>& problems)
      : project_folder_(std::move(project_folder)), problems_(problems) {}

  /// Sets the fields of `object`, the struct of `section`, that `mapping` names. `path` is the
  /// mapping's own key path, "facilities.alba". Keys without a binding are left to the caller.
  void read(const Node& mapping, const Section& section, void* object, const std::string& path);

  /// Whether the facility whose keys are read next is another machine: its paths are whole ones.
  void set_remote(bool remote) { remote_ = remote; }

  /// True when `node` is a mapping; else notes a problem.
  bool expect_mapping(const Node& node, const Key& key, const std::string& path);

  /// Where a key path was given; where its nearest parent was when it was not.
  Mark mark(std::string path) const;
  bool was_given(const std::string& path) const { return marks_.contains(path); }
  void note(const std::string& path, Mark mark) { marks_[path] = mark; }

  void problem(Mark mark, std::string message);

 private:
  void refuse_unknown(const Node& mapping, const Section& section, const std::string& path,
                      std::set<std::string>& meant);
  void read_key(const Node& node, const Key& key, void* object, const std::string& path);
  void wrong_type(const Node& node, const Key& key, const std::string& path,
                  const std::string& hint = {});
  Value scalar(const Node& node, const Key& key, const std::string& path);
  Value number(const Node& node, const Key& key, const std::string& path);
  Value boolean(const Node& node, const Key& key, const std::string& path);
  Value text(const Node& node, const Key& key, const std::string& path);
  Value texts(const Node& node, const Key& key, const std::string& path);
  Value choice(const Node& node, const Key& key, const std::string& path);
  Value absolute_path(const Node& node, const Key& key, const std::string& path);
  bool check_line(const Node& node, const std::string& path);
  void read_trainer(const Node& node, const Key& key, Facility& facility, const std::string& path);
  void read_command(const Node& node, Facility& facility, const std::string& path);
  Value environment(const Node& node, const Key& key, const std::string& path);
  Value paths(const Node& node, const Key& key, const std::string& path);
  Value validation_sets(const Node& node, const Key& key, const std::string& path);

  std::filesystem::path project_folder_;
  std::vector<Problem>& problems_;
  std::map<std::string, Mark> marks_;
  bool remote_ = false;
};

}  // namespace xffl::config
