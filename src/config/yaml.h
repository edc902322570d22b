// YAML text -> a tree of nodes with their lines and columns, read strictly; and text as YAML.
//
// Errors, each with its line and column: anchors, aliases, tags, duplicate keys, keys that are no
// scalars, quoted text over several lines (an unterminated quote would swallow the lines after it),
// more than one document, more than 4 MiB, nesting beyond 32, control characters, invalid UTF-8.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "xffl/config/load.h"

namespace xffl::config {

struct Mark {
  int line = 0;  // 1-based; 0: the file as a whole
  int column = 0;
};

struct Node {
  enum class Kind { kNull, kScalar, kList, kMapping };

  Kind kind = Kind::kNull;
  Mark mark;
  std::string text;         // of a scalar
  bool quoted = false;      // a scalar in quotes, or a block scalar
  std::vector<Node> keys;   // of a mapping: scalars, without duplicates
  std::vector<Node> items;  // of a list; of a mapping, the values of `keys`

  /// The value of `key` in a mapping, or nullptr.
  const Node* find(std::string_view key) const;
};

/// Returns the document's tree and adds the document's problems to `problems`. An empty document is
/// an empty mapping.
Node read_yaml(std::string_view text, std::vector<Problem>& problems);

/// "a list", "the text 'x'", ...: a node in a message.
std::string describe(const Node& node);

/// `text` as one YAML scalar that read_yaml gives back: as it is, or in double quotes.
std::string yaml_scalar(std::string_view text);

/// "[a, b]".
std::string yaml_flow_list(const std::vector<std::string>& items);

}  // namespace xffl::config
