# Warnings are errors, for our own code; libraries' headers are system headers. Under sanitizers gcc's flow analysis raises
# false alarms; the same code is checked in the other builds.
add_library(xffl_warnings INTERFACE)
set(warnings_are_errors -Werror)
set(cuda_warnings_are_errors -Werror=all-warnings)
option(XFFL_WARNINGS_ARE_ERRORS "Compilers other than the project's own warn of other things" ON)
if(XFFL_SANITIZE OR NOT XFFL_WARNINGS_ARE_ERRORS)
  set(warnings_are_errors "")
  set(cuda_warnings_are_errors "")
endif()
set(xffl_cxx_warnings
  -Wall -Wextra -Wpedantic ${warnings_are_errors} -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wcast-qual
  -Wno-missing-field-initializers  # designated initialisers leave the rest at their defaults on purpose
  # False alarms of gcc 12 inside std::string (GCC PR 105651), which precompiled headers bring out:
  -Wno-restrict -Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread)
target_compile_options(xffl_warnings INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${xffl_cxx_warnings}>"
  "$<$<COMPILE_LANGUAGE:CUDA>:${cuda_warnings_are_errors};-Xcompiler=-Wall>")
