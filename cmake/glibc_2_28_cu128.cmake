# The toolchain of `scripts/package.sh trainer --flavour cu128`: nvcc of scripts/cuda12.sh, LibTorch of its own folder.
set(XFFL_BUNDLE_FLAVOUR cu128)
include(${CMAKE_CURRENT_LIST_DIR}/glibc_2_28.cmake)
