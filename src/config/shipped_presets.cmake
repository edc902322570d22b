# Compiles configs/facilities/*.yaml into the program: writes shipped_presets.cc into the build folder and sets
# SHIPPED_PRESETS_SOURCE to it.
file(GLOB shipped_presets_files CONFIGURE_DEPENDS RELATIVE ${CMAKE_SOURCE_DIR}/configs/facilities
     ${CMAKE_SOURCE_DIR}/configs/facilities/*.yaml)
list(SORT shipped_presets_files)

set(shipped_presets_text "// Generated from configs/facilities/ by src/config/shipped_presets.cmake.\n#include \"shipped_presets.h\"\n
namespace xffl::config {
namespace {

constexpr ShippedPreset kPresets[] = {\n")
foreach(shipped_presets_file ${shipped_presets_files})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/configs/facilities/${shipped_presets_file})
  file(READ ${CMAKE_SOURCE_DIR}/configs/facilities/${shipped_presets_file} shipped_presets_content)
  get_filename_component(shipped_presets_name ${shipped_presets_file} NAME_WE)
  string(APPEND shipped_presets_text "    {\"${shipped_presets_name}\", R\"xffl~(${shipped_presets_content})xffl~\"},\n")
endforeach()
string(APPEND shipped_presets_text "};

}  // namespace

std::span<const ShippedPreset> shipped_presets() { return kPresets; }

}  // namespace xffl::config\n")

set(SHIPPED_PRESETS_SOURCE ${CMAKE_CURRENT_BINARY_DIR}/shipped_presets.cc)
set(shipped_presets_old "")
if(EXISTS ${SHIPPED_PRESETS_SOURCE})
  file(READ ${SHIPPED_PRESETS_SOURCE} shipped_presets_old)
endif()
if(NOT shipped_presets_old STREQUAL shipped_presets_text)
  file(WRITE ${SHIPPED_PRESETS_SOURCE} "${shipped_presets_text}")
endif()
