# Warnings are errors, for our own code; libraries' headers are system headers.
add_library(xffl_warnings INTERFACE)
target_compile_options(xffl_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Werror -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wcast-qual
  -Wno-missing-field-initializers  # designated initialisers leave the rest at their defaults on purpose
  -Wno-restrict)                   # false alarms of gcc 12 on std::string's operator+ (GCC PR 105651)
