# xffl_embed_files(function FOLDER folder [FILES file...] [KEEP_ENDINGS] MODULE module): compiles the files below
# `folder`, or only `FILES` of it, into a module.
#
# Writes <function>.cc into the build folder and sets <FUNCTION>_SOURCE, in capitals, to its path. The file defines
# `std::span<const EmbeddedFile> xffl::<module>::<function>()`, sorted by name (base/embedded_file.h); the function's user declares it. A file's name
# is its path below the folder without its extension (unless KEEP_ENDINGS); templates/slurm/job.sbatch is "slurm".
function(xffl_embed_files function)
  cmake_parse_arguments(PARSE_ARGV 1 arg "KEEP_ENDINGS" "FOLDER;MODULE" "FILES")
  set(files ${arg_FILES})
  if(NOT files)
    file(GLOB_RECURSE files CONFIGURE_DEPENDS RELATIVE ${CMAKE_SOURCE_DIR}/${arg_FOLDER} ${CMAKE_SOURCE_DIR}/${arg_FOLDER}/*)
  endif()
  list(SORT files)
  set(text "// Generated from ${arg_FOLDER}/ by cmake/embed_files.cmake.\n#include \"xffl/base/embedded_file.h\"\n
namespace xffl::${arg_MODULE} {
namespace {

constexpr EmbeddedFile kEmbedded[] = {\n")
  foreach(file ${files})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${arg_FOLDER}/${file})
    file(READ ${CMAKE_SOURCE_DIR}/${arg_FOLDER}/${file} content)
    set(name ${file})
    if(NOT arg_KEEP_ENDINGS)
      string(REGEX REPLACE "\\.[^./]*$" "" name ${name})
      string(REGEX REPLACE "/job$" "" name ${name})
    endif()
    string(APPEND text "    {\"${name}\", R\"xffl~(${content})xffl~\"},\n")
  endforeach()
  string(APPEND text "};

}  // namespace

std::span<const EmbeddedFile> ${function}();
std::span<const EmbeddedFile> ${function}() { return kEmbedded; }

}  // namespace xffl::${arg_MODULE}\n")

  # Writes the file only if it changed, so that a configuration alone recompiles nothing.
  set(source ${CMAKE_CURRENT_BINARY_DIR}/${function}.cc)
  set(old "")
  if(EXISTS ${source})
    file(READ ${source} old)
  endif()
  if(NOT old STREQUAL text)
    file(WRITE ${source} "${text}")
  endif()
  string(TOUPPER ${function} capitals)
  set(${capitals}_SOURCE ${source} PARENT_SCOPE)
endfunction()
