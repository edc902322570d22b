# Checks cmake/cuda_headers.cmake and cmake/warnings.cmake on toolkits and wheels made of empty files.
#
#   cmake -DSOURCE=<repository> -DFOLDER=<scratch> -P cuda_headers_test.cmake
cmake_minimum_required(VERSION 3.25)
include(${SOURCE}/cmake/cuda_headers.cmake)
file(REMOVE_RECURSE ${FOLDER})

function(make_headers folder)
  foreach(header ${ARGN})
    file(WRITE ${FOLDER}/${folder}/${header} "")
  endforeach()
endfunction()

function(expect name toolkit site_packages)
  xffl_cuda_library_headers(found ${FOLDER}/${toolkit} ${FOLDER}/${site_packages})
  list(TRANSFORM ARGN PREPEND ${FOLDER}/ OUTPUT_VARIABLE expected)
  if(NOT "${found}" STREQUAL "${expected}")
    message(SEND_ERROR "${name}: expected '${expected}', found '${found}'")
  endif()
endfunction()

set(all cublas_v2.h cublasLt.h cusparse.h cusolverDn.h)
make_headers(whole ${all})
make_headers(minimal cuda_runtime.h)
make_headers(partial cublas_v2.h cublasLt.h)
make_headers(one_wheel/nvidia/cu13/include ${all})
make_headers(one_wheel/nvidia/cudnn/include cudnn.h)
make_headers(many_wheels/nvidia/cublas/include cublas_v2.h cublasLt.h)
make_headers(many_wheels/nvidia/cusolver/include cusolverDn.h)
make_headers(many_wheels/nvidia/cusparse/include cusparse.h)

expect("a whole toolkit needs no wheel" whole one_wheel)
expect("a minimal toolkit takes the wheel of all libraries" minimal one_wheel one_wheel/nvidia/cu13/include)
expect("a minimal toolkit takes one wheel a library" minimal many_wheels many_wheels/nvidia/cublas/include
       many_wheels/nvidia/cusparse/include many_wheels/nvidia/cusolver/include)
expect("a partial toolkit takes the missing libraries only" partial many_wheels many_wheels/nvidia/cusparse/include
       many_wheels/nvidia/cusolver/include)

# A header that nobody has ends the configuration, by name.
file(WRITE ${FOLDER}/none.cmake "include(${SOURCE}/cmake/cuda_headers.cmake)\n"
                                "xffl_cuda_library_headers(found ${FOLDER}/partial ${FOLDER}/no_wheels)\n")
execute_process(COMMAND ${CMAKE_COMMAND} -P ${FOLDER}/none.cmake RESULT_VARIABLE code ERROR_VARIABLE told OUTPUT_QUIET)
if(code EQUAL 0 OR NOT told MATCHES "cusparse.h was not found")
  message(SEND_ERROR "a missing header: exit code ${code}, '${told}'")
endif()

# No flag of the CUDA and C++ compilers makes warnings errors where XFFL_WARNINGS_ARE_ERRORS is OFF.
foreach(setting ON OFF)
  file(WRITE ${FOLDER}/warnings_${setting}/CMakeLists.txt "cmake_minimum_required(VERSION 3.25)
project(warnings LANGUAGES NONE)
include(${SOURCE}/cmake/warnings.cmake)
get_target_property(options xffl_warnings INTERFACE_COMPILE_OPTIONS)
file(WRITE ${FOLDER}/flags_${setting} \"\${options}\")
")
  execute_process(COMMAND ${CMAKE_COMMAND} -S ${FOLDER}/warnings_${setting} -B ${FOLDER}/build_${setting}
                          -DXFFL_WARNINGS_ARE_ERRORS=${setting} OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
  file(READ ${FOLDER}/flags_${setting} flags)
  string(REGEX MATCHALL "-Werror[^;>]*" errors "${flags}")
  if(setting AND NOT "${errors}" STREQUAL "-Werror;-Werror=all-warnings")
    message(SEND_ERROR "XFFL_WARNINGS_ARE_ERRORS=ON: '${errors}'")
  elseif(NOT setting AND errors)
    message(SEND_ERROR "XFFL_WARNINGS_ARE_ERRORS=OFF: '${errors}'")
  endif()
endforeach()
