// Text files of the source tree that cmake/embed_files.cmake compiles into a program.
#pragma once

#include <span>
#include <string_view>

namespace xffl {

struct EmbeddedFile {
  std::string_view name;
  std::string_view text;
};

}  // namespace xffl
