# The only file that names Apache Arrow: sets XFFL_ARROW_FOUND and the target xffl_arrow.
#
# libarrow and libparquet are the "pyarrow" folder of the PyPI wheel: XFFL_ARROW_DIR, as a CMake or environment variable, else the folder
# that scripts/bootstrap.sh installed. Without it, xffl-tokenize refuses Parquet and Arrow files (src/tokenize/no_table_format.cc).
# XFFL_ARROW=ON, as in bundles, makes its absence an error; OFF, as in the Debian package, leaves it out.
set(XFFL_ARROW AUTO CACHE STRING "Read Parquet and Arrow with the pyarrow wheel's libarrow: AUTO (if it is there), ON, OFF")
set_property(CACHE XFFL_ARROW PROPERTY STRINGS AUTO ON OFF)
set(XFFL_ARROW_FOUND FALSE)
if(XFFL_ARROW STREQUAL OFF)
  return()
endif()
if(NOT XFFL_ARROW_DIR AND DEFINED ENV{XFFL_ARROW_DIR})
  set(XFFL_ARROW_DIR $ENV{XFFL_ARROW_DIR})
endif()
if(NOT XFFL_ARROW_DIR)
  file(GLOB candidates ${CMAKE_SOURCE_DIR}/.deps/venv/lib/python3*/site-packages/pyarrow)
  list(LENGTH candidates num_candidates)
  if(num_candidates GREATER 0)
    list(GET candidates 0 XFFL_ARROW_DIR)
  endif()
endif()
# The wheel has each library once, under its soname: libarrow.so.2600.
file(GLOB arrow_library ${XFFL_ARROW_DIR}/libarrow.so.*)
file(GLOB parquet_library ${XFFL_ARROW_DIR}/libparquet.so.*)
list(LENGTH arrow_library num_arrow)
list(LENGTH parquet_library num_parquet)
if(NOT num_arrow EQUAL 1 OR NOT num_parquet EQUAL 1 OR NOT EXISTS ${XFFL_ARROW_DIR}/include/parquet/arrow/reader.h)
  if(XFFL_ARROW STREQUAL ON)
    message(FATAL_ERROR "libarrow was not found in '${XFFL_ARROW_DIR}': run scripts/bootstrap.sh, or set XFFL_ARROW_DIR to the pyarrow "
                        "folder of a wheel, or XFFL_ARROW=OFF")
  endif()
  message(STATUS "No libarrow: xffl-tokenize will not read Parquet and Arrow (scripts/bootstrap.sh installs pyarrow)")
  return()
endif()
set(XFFL_ARROW_FOUND TRUE)
add_library(xffl_arrow INTERFACE)
set_target_properties(xffl_arrow PROPERTIES XFFL_ARROW_FOLDER ${XFFL_ARROW_DIR})
target_include_directories(xffl_arrow SYSTEM INTERFACE ${XFFL_ARROW_DIR}/include)
# libstdc++ comes first, as in torch.cmake.
target_link_libraries(xffl_arrow INTERFACE stdc++ ${parquet_library} ${arrow_library})
