# Applies XFFL_SANITIZE (address,undefined or thread) to every target.
if(XFFL_SANITIZE)
  add_compile_options(-fsanitize=${XFFL_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${XFFL_SANITIZE})
endif()
