# The only file that names Torch and NCCL.
#
# LibTorch is the "torch" folder of the PyPI wheel (or of the LibTorch archive): XFFL_TORCH_DIR, as a CMake or environment variable,
# else the folder that scripts/bootstrap.sh installed. Torch's own CMake package enables the CUDA language and therefore needs nvcc even
# for a CPU build, so this file declares the targets.
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
  message(FATAL_ERROR "LibTorch was not found in '${XFFL_TORCH_DIR}': run scripts/bootstrap.sh, or set XFFL_TORCH_DIR "
                      "to a folder that holds include/ and lib/libtorch_cpu.so, or use the preset 'coordinator'")
endif()
set(XFFL_TORCH_DIR ${XFFL_TORCH_DIR} CACHE PATH "LibTorch: the folder with include/ and lib/" FORCE)

add_library(xffl_torch INTERFACE)
target_include_directories(xffl_torch SYSTEM INTERFACE
  ${XFFL_TORCH_DIR}/include ${XFFL_TORCH_DIR}/include/torch/csrc/api/include)
# The wheel contains Gloo without headers: Debian's libgloo-dev provides the headers and is not linked. src/comm/gloo.cc is the only
# user and checks at start-up that headers and library match.
target_compile_definitions(xffl_torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
# libstdc++ comes first: the wheel's libraries export parts of an older libstdc++ (std::filesystem), which the programs must not use.
# Torch's own libraries have an rpath to their dependencies.
target_link_libraries(xffl_torch INTERFACE stdc++
  ${XFFL_TORCH_DIR}/lib/libtorch.so ${XFFL_TORCH_DIR}/lib/libtorch_cpu.so ${XFFL_TORCH_DIR}/lib/libc10.so)
target_link_options(xffl_torch INTERFACE -Wl,--allow-shlib-undefined)
# at::parallel_for is in headers and runs on one thread without OpenMP. Links the OpenMP runtime that LibTorch loads: the threads of a
# second runtime would compete with LibTorch's threads.
target_compile_options(xffl_torch INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fopenmp>)
file(GLOB openmp_runtime ${XFFL_TORCH_DIR}/lib/libgomp*.so* ${XFFL_TORCH_DIR}/../torch.libs/libgomp*.so*)
list(APPEND openmp_runtime gomp)
list(GET openmp_runtime 0 openmp_runtime)
target_link_libraries(xffl_torch INTERFACE ${openmp_runtime})
# The folders of these libraries, for installed programs.
set(XFFL_TORCH_LIBRARY_FOLDERS ${XFFL_TORCH_DIR}/lib)
foreach(library ${openmp_runtime})
  if(IS_ABSOLUTE ${library})
    get_filename_component(folder ${library} DIRECTORY)
    list(APPEND XFFL_TORCH_LIBRARY_FOLDERS ${folder})
  endif()
endforeach()

if(XFFL_CUDA)
  # Ampere and Hopper, and PTX that later GPUs compile at the first run; CUDAARCHS overrides.
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90)
  endif()
  set(CMAKE_CUDA_RUNTIME_LIBRARY None)  # links LibTorch's runtime, see below
  find_package(CUDAToolkit REQUIRED)
  if(NOT CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE})
  endif()
  enable_language(CUDA)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know the option of nvcc 12 and later
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  set(CMAKE_CUDA_STANDARD 20)
  get_filename_component(site_packages ${XFFL_TORCH_DIR} DIRECTORY)
  # Links the CUDA runtime that LibTorch loads by its path, so that the process cannot load a second one.
  file(GLOB cuda_runtime ${site_packages}/nvidia/cu*/lib/libcudart.so.* ${XFFL_TORCH_DIR}/lib/libcudart*.so*)
  list(APPEND cuda_runtime CUDA::cudart)
  list(GET cuda_runtime 0 cuda_runtime)
  add_library(xffl_cuda_runtime INTERFACE)
  target_link_libraries(xffl_cuda_runtime INTERFACE ${cuda_runtime})
  if(IS_ABSOLUTE ${cuda_runtime})
    get_filename_component(folder ${cuda_runtime} DIRECTORY)
    list(APPEND XFFL_TORCH_LIBRARY_FOLDERS ${folder})
  endif()
  find_path(XFFL_NCCL_INCLUDE nccl.h HINTS ${site_packages}/nvidia/nccl/include ${CUDAToolkit_INCLUDE_DIRS} REQUIRED NO_CMAKE_FIND_ROOT_PATH)
  include(cuda_headers)
  xffl_cuda_library_headers(cuda_library_headers "${CUDAToolkit_INCLUDE_DIRS}" ${site_packages})
  target_include_directories(xffl_torch SYSTEM INTERFACE
    ${CUDAToolkit_INCLUDE_DIRS} ${XFFL_NCCL_INCLUDE} ${cuda_library_headers})
  target_compile_definitions(xffl_torch INTERFACE USE_CUDA USE_C10D_NCCL)
  target_link_libraries(xffl_torch INTERFACE
    ${XFFL_TORCH_DIR}/lib/libtorch_cuda.so ${XFFL_TORCH_DIR}/lib/libc10_cuda.so)
  # Libraries that NVIDIA's libraries with a RUNPATH need or open: LD_LIBRARY_PATH, which a site's modules set, comes before a RUNPATH.
  # A program that needs them itself finds them by its RPATH, and the loader takes a library only once.
  if(XFFL_OWN_LIBRARIES)
    file(GLOB own_libraries ${site_packages}/nvidia/cu13/lib/libnvJitLink.so.13 ${site_packages}/nvidia/cu13/lib/libnvrtc.so.13
      ${site_packages}/nvidia/nvjitlink/lib/libnvJitLink.so.12 ${site_packages}/nvidia/cuda_nvrtc/lib/libnvrtc.so.12
      ${site_packages}/nvidia/cudnn/lib/libcudnn_graph.so.9 ${site_packages}/nvidia/cudnn/lib/libcudnn_heuristic.so.9
      ${site_packages}/nvidia/cudnn/lib/libcudnn_ops.so.9 ${site_packages}/nvidia/cudnn/lib/libcudnn_engines_*.so.9
      ${CMAKE_SYSROOT}/lib/*/libz.so.1)
    target_link_libraries(xffl_torch INTERFACE -Wl,--push-state,--no-as-needed ${own_libraries} -Wl,--pop-state)
  endif()
endif()

list(REMOVE_DUPLICATES XFFL_TORCH_LIBRARY_FOLDERS)

# Parsing torch's headers costs about ten seconds per file, so all targets share one precompiled header.
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/torch_pch.cc CONTENT "// Carries the precompiled header.\n")
add_library(xffl_torch_pch OBJECT ${CMAKE_BINARY_DIR}/torch_pch.cc)
target_link_libraries(xffl_torch_pch PRIVATE xffl_torch xffl_warnings Threads::Threads)
target_precompile_headers(xffl_torch_pch PRIVATE <torch/types.h> <torch/autograd.h>)

# Links torch to a target and uses the shared precompiled header. Loading the header costs as much as compiling one file, so CMake
# compiles a target's files as one unity file. Names in anonymous namespaces must therefore be unique in a target.
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
