// The scripts that fetch the demo's texts, as they are in scripts/.
#pragma once

#include <span>
#include <string_view>

namespace xffl::demo {

struct DemoScript {
  std::string_view name;  // "get_corpora.sh"
  std::string_view text;
};

/// All scripts; get_corpora.sh calls the others in its own folder.
std::span<const DemoScript> demo_scripts();

}  // namespace xffl::demo
