# Warnings are errors in the project's code; library headers are system headers. With sanitizers gcc's flow analysis gives false
# positives, and the other builds check the same code.
add_library(xffl_warnings INTERFACE)
set(warnings_are_errors -Werror)
set(cuda_warnings_are_errors -Werror=all-warnings)
option(XFFL_WARNINGS_ARE_ERRORS "Treat warnings as errors; OFF for compilers with other warnings than the project's" ON)
if(XFFL_SANITIZE OR NOT XFFL_WARNINGS_ARE_ERRORS)
  set(warnings_are_errors "")
  set(cuda_warnings_are_errors "")
endif()
set(xffl_cxx_warnings
  -Wall -Wextra -Wpedantic ${warnings_are_errors} -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wcast-qual
  -Wno-missing-field-initializers  # designated initialisers leave other members at their defaults
  # False positives of gcc 12 inside std::string (GCC PR 105651), with precompiled headers:
  -Wno-restrict -Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread)
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  list(APPEND xffl_cxx_warnings -Wno-unknown-warning-option)
endif()
target_compile_options(xffl_warnings INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${xffl_cxx_warnings}>"
  "$<$<COMPILE_LANGUAGE:CUDA>:${cuda_warnings_are_errors};-Xcompiler=-Wall>")
