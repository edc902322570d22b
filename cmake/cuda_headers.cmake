# Finds the headers of cuBLAS, cuSPARSE and cuSOLVER, which LibTorch's CUDA headers include. A minimal toolkit (nvcc and the runtime)
# lacks them; the PyPI wheels of LibTorch's dependencies have them in nvidia/cu13/include or in nvidia/*/include.

# Sets `result` to the wheel folders with the headers that the toolkit lacks; empty for a complete toolkit. Put these folders after the
# toolkit's on the include path: a header in both must come from the toolkit, which nvcc belongs to.
function(xffl_cuda_library_headers result toolkit_folders site_packages)
  file(GLOB wheel_folders ${site_packages}/nvidia/cu[0-9]*/include ${site_packages}/nvidia/*/include)
  set(folders "")
  foreach(header cublas_v2.h cublasLt.h cusparse.h cusolverDn.h)
    set(found FALSE)
    foreach(folder ${toolkit_folders} ${folders})
      if(EXISTS ${folder}/${header})
        set(found TRUE)
      endif()
    endforeach()
    foreach(folder ${wheel_folders})
      if(NOT found AND EXISTS ${folder}/${header})
        list(APPEND folders ${folder})
        set(found TRUE)
      endif()
    endforeach()
    if(NOT found)
      message(FATAL_ERROR "${header} was not found in the CUDA toolkit (${toolkit_folders}) nor in the wheels of "
                          "${site_packages}/nvidia: install the toolkit's libraries, or LibTorch from PyPI with its wheels")
    endif()
  endforeach()
  set(${result} "${folders}" PARENT_SCOPE)
endfunction()
