# The toolchain of the preset aarch64: programs and tests for aarch64, built on x86-64 with Debian's cross compiler and the libraries of
# scripts/aarch64_root.sh, and run by QEMU's user emulation.
get_filename_component(deps ${CMAKE_CURRENT_LIST_DIR}/../.deps REALPATH)
set(XFFL_ROOT ${deps}/aarch64)
set(XFFL_TORCH_DIR ${deps}/aarch64_torch/torch) # of the preset aarch64-trainer
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
# The compiler has headers and libraries of C and C++; the other ones are in XFFL_ROOT.
set(CMAKE_FIND_ROOT_PATH ${XFFL_ROOT})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
string(JOIN " " CMAKE_CXX_FLAGS_INIT -isystem ${XFFL_ROOT}/usr/include/aarch64-linux-gnu)
# Grace's kernels have pages of 64 KiB.
string(JOIN " " CMAKE_EXE_LINKER_FLAGS_INIT -Wl,-z,max-page-size=65536 -Wl,-rpath-link,${XFFL_ROOT}/usr/lib/aarch64-linux-gnu -Wl,-rpath-link,${XFFL_ROOT}/lib/aarch64-linux-gnu)
set(CMAKE_SKIP_RPATH TRUE)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static -L ${XFFL_ROOT})
