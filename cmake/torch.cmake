# The only file that names Torch and NCCL.
#
# LibTorch is the "torch" folder of the PyPI wheel (or of the LibTorch archive): XFFL_TORCH_DIR, as a CMake or
# environment variable, else the one that scripts/bootstrap.sh installed. Torch's own CMake package enables the CUDA
# language and therefore needs nvcc even for a CPU build, so the targets are declared here.
if(NOT XFFL_TORCH_DIR AND DEFINED ENV{XFFL_TORCH_DIR})
  set(XFFL_TORCH_DIR $ENV{XFFL_TORCH_DIR})
endif()
if(NOT XFFL_TORCH_DIR)
  file(GLOB candidates ${CMAKE_SOURCE_DIR}/.deps/venv/lib/python3*/site-packages/torch)
  list(LENGTH candidates num_candidates)
  if(num_candidates GREATER 0)
    list(GET candidates 0 XFFL_TORCH_DIR)
  endif()
endif()
if(NOT XFFL_TORCH_DIR OR NOT EXISTS ${XFFL_TORCH_DIR}/lib/libtorch_cpu.so)
  message(FATAL_ERROR "LibTorch was not found (looked at '${XFFL_TORCH_DIR}'): run scripts/bootstrap.sh, or set XFFL_TORCH_DIR "
                      "to a folder that holds include/ and lib/libtorch_cpu.so, or use the preset 'coordinator'")
endif()
set(XFFL_TORCH_DIR ${XFFL_TORCH_DIR} CACHE PATH "LibTorch: the folder with include/ and lib/" FORCE)

add_library(xffl_torch INTERFACE)
target_include_directories(xffl_torch SYSTEM INTERFACE
  ${XFFL_TORCH_DIR}/include ${XFFL_TORCH_DIR}/include/torch/csrc/api/include)
# The wheel has Gloo inside and its headers not: Debian's libgloo-dev lends the headers (never linked). src/comm/gloo.cc
# is the only user and checks itself at start-up.
target_compile_definitions(xffl_torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
# libstdc++ goes first: the wheel's libraries export parts of an older one (std::filesystem), which must not be bound to.
# Torch's own libraries carry an rpath to what they need.
target_link_libraries(xffl_torch INTERFACE stdc++
  ${XFFL_TORCH_DIR}/lib/libtorch.so ${XFFL_TORCH_DIR}/lib/libtorch_cpu.so ${XFFL_TORCH_DIR}/lib/libc10.so)
target_link_options(xffl_torch INTERFACE -Wl,--allow-shlib-undefined)
# at::parallel_for lies in headers and runs on one thread where OpenMP is off. The runtime is the one that LibTorch loads: a
# second one's threads would spin beside its own.
target_compile_options(xffl_torch INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fopenmp>)
file(GLOB openmp_runtime ${XFFL_TORCH_DIR}/lib/libgomp*.so* ${XFFL_TORCH_DIR}/../torch.libs/libgomp*.so*)
list(APPEND openmp_runtime gomp)
list(GET openmp_runtime 0 openmp_runtime)
target_link_libraries(xffl_torch INTERFACE ${openmp_runtime})

if(XFFL_CUDA)
  # Ampere and Hopper, and what later GPUs compile when they first run it; CUDAARCHS overrides.
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90)
  endif()
  set(CMAKE_CUDA_RUNTIME_LIBRARY None)  # LibTorch's, see below
  find_package(CUDAToolkit REQUIRED)
  if(NOT CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE})
  endif()
  enable_language(CUDA)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know it of nvcc 12 and later
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  set(CMAKE_CUDA_STANDARD 20)
  get_filename_component(site_packages ${XFFL_TORCH_DIR} DIRECTORY)
  # The runtime that LibTorch loads, by its path: a second one, or one that ld.so has to find, would be asking for trouble.
  file(GLOB cuda_runtime ${site_packages}/nvidia/cu*/lib/libcudart.so.* ${XFFL_TORCH_DIR}/lib/libcudart*.so*)
  list(APPEND cuda_runtime CUDA::cudart)
  list(GET cuda_runtime 0 cuda_runtime)
  add_library(xffl_cuda_runtime INTERFACE)
  target_link_libraries(xffl_cuda_runtime INTERFACE ${cuda_runtime})
  find_path(XFFL_NCCL_INCLUDE nccl.h HINTS ${site_packages}/nvidia/nccl/include ${CUDAToolkit_INCLUDE_DIRS} REQUIRED)
  include(cuda_headers)
  xffl_cuda_library_headers(cuda_library_headers "${CUDAToolkit_INCLUDE_DIRS}" ${site_packages})
  target_include_directories(xffl_torch SYSTEM INTERFACE
    ${CUDAToolkit_INCLUDE_DIRS} ${XFFL_NCCL_INCLUDE} ${cuda_library_headers})
  target_compile_definitions(xffl_torch INTERFACE USE_CUDA USE_C10D_NCCL)
  target_link_libraries(xffl_torch INTERFACE
    ${XFFL_TORCH_DIR}/lib/libtorch_cuda.so ${XFFL_TORCH_DIR}/lib/libc10_cuda.so)
endif()

# Parsing torch's headers costs about ten seconds a file: one precompiled header serves all.
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/torch_pch.cc CONTENT "// Carries the precompiled header.\n")
add_library(xffl_torch_pch OBJECT ${CMAKE_BINARY_DIR}/torch_pch.cc)
target_link_libraries(xffl_torch_pch PRIVATE xffl_torch xffl_warnings Threads::Threads)
target_precompile_headers(xffl_torch_pch PRIVATE <torch/types.h> <torch/autograd.h>)

# Links torch to a target and lends it the precompiled header. Loading that costs as much as compiling one of our files: a
# target's files are compiled as one (a file's internal names must be its own in its target).
function(xffl_use_torch target)
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "EXECUTABLE")
    target_link_libraries(${target} PRIVATE xffl_torch)
  else()
    target_link_libraries(${target} PUBLIC xffl_torch)
  endif()
  target_precompile_headers(${target} REUSE_FROM xffl_torch_pch)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
endfunction()
