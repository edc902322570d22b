// What xffl inspect knows about each kind of file, as JSON.
#pragma once

#include <filesystem>
#include <string>

#include "xffl/base/json.h"

namespace xffl {

struct Description {
  Json json;              // first key: "kind"
  std::string complaint;  // what is wrong with it, though it could be read; empty: nothing
};

/// Throws kNotFound, kUsage (nothing that xffl knows), and what the kind's reader throws.
Description describe(const std::filesystem::path& path, bool with_tensors);

}  // namespace xffl
