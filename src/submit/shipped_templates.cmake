# Compiles templates/**/* into the program: writes shipped_templates.cc into the build folder and sets
# SHIPPED_TEMPLATES_SOURCE to it. A template's kind is its path without ending; templates/<kind>/job.* is "<kind>".
file(GLOB_RECURSE shipped_templates_files CONFIGURE_DEPENDS RELATIVE ${CMAKE_SOURCE_DIR}/templates ${CMAKE_SOURCE_DIR}/templates/*)
list(SORT shipped_templates_files)

set(shipped_templates_text "// Generated from templates/ by src/submit/shipped_templates.cmake.\n#include \"shipped_templates.h\"\n
namespace xffl::submit {
namespace {

constexpr ShippedTemplate kTemplates[] = {\n")
foreach(shipped_templates_file ${shipped_templates_files})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/templates/${shipped_templates_file})
  file(READ ${CMAKE_SOURCE_DIR}/templates/${shipped_templates_file} shipped_templates_content)
  string(REGEX REPLACE "\\.[^./]*$" "" shipped_templates_kind ${shipped_templates_file})
  string(REGEX REPLACE "/job$" "" shipped_templates_kind ${shipped_templates_kind})
  string(APPEND shipped_templates_text "    {\"${shipped_templates_kind}\", R\"xffl~(${shipped_templates_content})xffl~\"},\n")
endforeach()
string(APPEND shipped_templates_text "};

}  // namespace

std::span<const ShippedTemplate> shipped_templates() { return kTemplates; }

}  // namespace xffl::submit\n")

set(SHIPPED_TEMPLATES_SOURCE ${CMAKE_CURRENT_BINARY_DIR}/shipped_templates.cc)
set(shipped_templates_old "")
if(EXISTS ${SHIPPED_TEMPLATES_SOURCE})
  file(READ ${SHIPPED_TEMPLATES_SOURCE} shipped_templates_old)
endif()
if(NOT shipped_templates_old STREQUAL shipped_templates_text)
  file(WRITE ${SHIPPED_TEMPLATES_SOURCE} "${shipped_templates_text}")
endif()
