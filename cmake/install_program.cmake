# cmake --install BUILD [--component NAME] --prefix PREFIX. A component for each program has its name; the component doc has the pages,
# examples and the licence.
include(GNUInstallDirs)

# xffl_install_program(name [MANUAL]): bin/<name>; MANUAL: with the pages that `<name> man FOLDER` writes.
function(xffl_install_program name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "MANUAL" "" "")
  install(TARGETS ${name} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT ${name})
  if(arg_MANUAL AND XFFL_MANUAL)
    set(pages ${CMAKE_BINARY_DIR}/manual/${name})
    add_custom_command(OUTPUT ${pages}/${name}.1 COMMAND ${CMAKE_COMMAND} -E rm -rf ${pages} COMMAND ${name} man ${pages}
                       DEPENDS ${name} VERBATIM)
    add_custom_target(${name}_man_pages ALL DEPENDS ${pages}/${name}.1)
    install(DIRECTORY ${pages}/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT ${name})
  endif()
endfunction()

# The README's links lead to the files beside it.
install(FILES README.md CHANGELOG.md CONTRIBUTING.md LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT doc)
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT doc)
install(DIRECTORY configs DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT doc)
