# The toolchain of scripts/package.sh: programs that start on any Linux with glibc 2.28 or newer (RHEL 8, SLES 15, Debian 10).
#
# This machine's compiler, with the headers and libraries of Debian 11 (scripts/sysroot.sh). glibc_2_28.cc has the functions that
# glibc 2.28 lacks; DT_RPATH, in contrast to DT_RUNPATH, also holds for the libraries' own dependencies and comes before LD_LIBRARY_PATH.
get_filename_component(deps ${CMAKE_CURRENT_LIST_DIR}/../.deps REALPATH)
set(XFFL_SYSROOT ${deps}/sysroot/x86_64)
set(CMAKE_SYSROOT ${XFFL_SYSROOT})
set(CMAKE_C_COMPILER gcc)
set(CMAKE_CXX_COMPILER g++)
# CUDA's tool kit for the preset bundle-cu13: scripts/bootstrap.sh package-cu13.
set(CUDAToolkit_ROOT ${deps}/cuda/nvidia/cu13)
set(CMAKE_FIND_ROOT_PATH ${XFFL_SYSROOT} ${CUDAToolkit_ROOT})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(OPENSSL_USE_STATIC_LIBS TRUE)
set(CMAKE_SKIP_RPATH TRUE)
# Before glibc 2.34 libpthread is a library of its own. The headers refer to it weakly, so that --as-needed would leave it out, and the
# first thread would call a null pointer.
# -B finds Debian 11's Scrt1.o: since glibc 2.34 a program's start-up code leaves its constructors to libc.so, and an older libc.so
# would never call them.
# The first -L is searched before the compiler's own folder, whose libstdc++ is newer.
string(JOIN " " CMAKE_EXE_LINKER_FLAGS_INIT
  --sysroot=${XFFL_SYSROOT} -B${XFFL_SYSROOT}/usr/lib/x86_64-linux-gnu/ -L${XFFL_SYSROOT}/usr/lib/x86_64-linux-gnu -L${XFFL_SYSROOT}/lib/x86_64-linux-gnu -Wl,--no-as-needed -lpthread -Wl,--as-needed -Wl,--disable-new-dtags "-Wl,-rpath,'$ORIGIN/../lib'"
  -Wl,--wrap=exp -Wl,--wrap=log -Wl,--wrap=pow)
# The same bytes wherever the source lies.
set(prefix_maps -ffile-prefix-map=${deps}=/deps -ffile-prefix-map=${CMAKE_SOURCE_DIR}=/xffl)
string(JOIN " " CMAKE_CXX_FLAGS_INIT ${prefix_maps})
# nvcc hands the options to the same compiler; CMake gives CMAKE_SYSROOT to C and C++ only.
list(TRANSFORM prefix_maps PREPEND -Xcompiler= OUTPUT_VARIABLE cuda_prefix_maps)
string(JOIN " " CMAKE_CUDA_FLAGS_INIT -Xcompiler=--sysroot=${XFFL_SYSROOT} ${cuda_prefix_maps})
set(XFFL_COMPAT ${CMAKE_CURRENT_LIST_DIR}/glibc_2_28.cc)
