// Text files of the source tree that are compiled into a program: cmake/embed_files.cmake.
#pragma once

#include <span>
#include <string_view>

namespace xffl {

struct EmbeddedFile {
  std::string_view name;
  std::string_view text;
};

}  // namespace xffl
