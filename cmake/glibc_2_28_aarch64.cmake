# The toolchain of `scripts/package.sh trainer --arch aarch64`, on x86-64.
set(XFFL_BUNDLE_ARCH aarch64)
include(${CMAKE_CURRENT_LIST_DIR}/glibc_2_28.cmake)
