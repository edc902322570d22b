# Applies XFFL_SANITIZE (address,undefined or thread) to every target.
if(XFFL_SANITIZE)
  add_compile_options(-fsanitize=${XFFL_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${XFFL_SANITIZE})
endif()
# Counts the branches that an input takes, for libFuzzer; tests/fuzz/CMakeLists.txt links it. The last option lets ccache store
# precompiled headers.
if(XFFL_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link "SHELL:-Xclang -fno-pch-timestamp")
endif()
