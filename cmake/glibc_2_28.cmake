# The toolchain of scripts/package.sh: programs that start on any Linux with glibc 2.28 or newer (RHEL 8, SLES 15, Debian 10).
#
# This machine's compiler, with the headers and libraries of Debian 11 (scripts/sysroot.sh). glibc_2_28.cc has the functions that
# glibc 2.28 lacks; DT_RPATH, in contrast to DT_RUNPATH, also holds for the libraries' own dependencies and comes before LD_LIBRARY_PATH.
get_filename_component(deps ${CMAKE_CURRENT_LIST_DIR}/../.deps REALPATH)
# glibc_2_28_aarch64.cmake sets it for programs that Debian's cross compiler builds on x86-64.
if(NOT XFFL_BUNDLE_ARCH)
  set(XFFL_BUNDLE_ARCH x86_64)
endif()
set(triplet ${XFFL_BUNDLE_ARCH}-linux-gnu)
set(XFFL_SYSROOT ${deps}/sysroot/${XFFL_BUNDLE_ARCH})
set(CMAKE_SYSROOT ${XFFL_SYSROOT})
set(compiler_prefix)
set(own_headers)
set(page_size)
if(NOT XFFL_BUNDLE_ARCH STREQUAL CMAKE_HOST_SYSTEM_PROCESSOR)
  set(CMAKE_SYSTEM_NAME Linux)
  set(CMAKE_SYSTEM_PROCESSOR ${XFFL_BUNDLE_ARCH})
  set(CMAKE_LIBRARY_ARCHITECTURE ${triplet})
  set(compiler_prefix ${triplet}-)
  set(torch ${deps}/${XFFL_BUNDLE_ARCH}_torch)
  if(XFFL_CUDA)
    string(APPEND torch _cu13)
  endif()
  set(XFFL_TORCH_DIR ${torch}/torch)
  set(XFFL_ARROW_DIR ${deps}/${XFFL_BUNDLE_ARCH}_arrow/pyarrow)
  # The cross compiler searches its own, newer glibc's headers before the ones of a sysroot.
  execute_process(COMMAND ${triplet}-g++ -print-file-name=include OUTPUT_VARIABLE gcc_include OUTPUT_STRIP_TRAILING_WHITESPACE)
  execute_process(COMMAND ${triplet}-g++ -dumpversion OUTPUT_VARIABLE gcc_version OUTPUT_STRIP_TRAILING_WHITESPACE)
  set(cxx /usr/${triplet}/include/c++/${gcc_version})
  set(own_headers -nostdinc -isystem ${cxx} -isystem ${cxx}/${triplet} -isystem ${cxx}/backward -isystem ${gcc_include}
                  -isystem ${XFFL_SYSROOT}/usr/include/${triplet} -isystem ${XFFL_SYSROOT}/usr/include)
  # Grace's kernels have pages of 64 KiB.
  set(page_size -Wl,-z,max-page-size=65536)
  set(CMAKE_CROSSCOMPILING_EMULATOR qemu-${XFFL_BUNDLE_ARCH}-static -L ${XFFL_SYSROOT})
endif()
set(CMAKE_C_COMPILER ${compiler_prefix}gcc)
set(CMAKE_CXX_COMPILER ${compiler_prefix}g++)
# CUDA's tool kit: scripts/bootstrap.sh package-cu13 or package-cu128.
set(CUDAToolkit_ROOT ${deps}/cuda/nvidia/cu13)
if(XFFL_BUNDLE_FLAVOUR STREQUAL "cu128")
  set(CUDAToolkit_ROOT ${deps}/cuda12)
  set(XFFL_TORCH_DIR ${deps}/torch_cu128/torch)
endif()
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
  --sysroot=${XFFL_SYSROOT} -B${XFFL_SYSROOT}/usr/lib/${triplet}/ -L${XFFL_SYSROOT}/usr/lib/${triplet} -L${XFFL_SYSROOT}/lib/${triplet} ${page_size} -Wl,--no-as-needed -lpthread -Wl,--as-needed -Wl,--disable-new-dtags "-Wl,-rpath,'$ORIGIN/../lib'"
  -Wl,--wrap=exp -Wl,--wrap=log -Wl,--wrap=pow)
# The same bytes wherever the source lies.
set(prefix_maps -ffile-prefix-map=${deps}=/deps -ffile-prefix-map=${CMAKE_SOURCE_DIR}=/xffl)
string(JOIN " " CMAKE_CXX_FLAGS_INIT ${prefix_maps} ${own_headers})
# nvcc hands the options to the same compiler; CMake gives CMAKE_SYSROOT to C and C++ only.
list(TRANSFORM prefix_maps PREPEND -Xcompiler= OUTPUT_VARIABLE cuda_prefix_maps)
set(cuda_cross)
if(compiler_prefix)
  set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})
  # nvcc has a folder of headers and libraries for its own architecture only; the headers are the same for all.
  list(TRANSFORM own_headers PREPEND -Xcompiler= OUTPUT_VARIABLE cuda_cross)
  list(APPEND cuda_cross -I${CUDAToolkit_ROOT}/include -L${torch}/nvidia/cu13/lib)
endif()
string(JOIN " " CMAKE_CUDA_FLAGS_INIT -Xcompiler=--sysroot=${XFFL_SYSROOT} ${cuda_prefix_maps} ${cuda_cross})
set(XFFL_COMPAT ${CMAKE_CURRENT_LIST_DIR}/glibc_2_28.cc)
