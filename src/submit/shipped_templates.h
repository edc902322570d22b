// The job templates of templates/, compiled in by cmake/embed_files.cmake.
#pragma once

#include <span>
#include <string_view>

namespace xffl::submit {

struct ShippedTemplate {
  std::string_view name;
  std::string_view text;
};

std::span<const ShippedTemplate> shipped_templates();

}  // namespace xffl::submit
