# cpack in a build folder of the preset deb: the Debian package of xffl and xffl-tokenize; scripts/package.sh coordinator calls it.
#
# Depends comes from dpkg-shlibdeps and holds for the Debian release of the building machine. SOURCE_DATE_EPOCH sets all times.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME xffl)
set(CPACK_PACKAGE_VENDOR "The xffl authors")
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
# The project has no mail address: a builder who hands the package on gives one.
set(XFFL_MAINTAINER "The xffl authors <xffl@localhost.localdomain>" CACHE STRING "Maintainer of the Debian package: Name <address>")
set(CPACK_DEBIAN_PACKAGE_MAINTAINER ${XFFL_MAINTAINER})
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "cross-facility federated learning of language models")
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION
    "xffl fine-tunes one LLaMA across HPC facilities that share only SSH and Slurm.
The text stays at each facility, and only models travel.

This package has the coordinator, xffl, which submits jobs, fetches updates
and averages them, and xffl-tokenize, which turns text into token shards.
The trainer, xffl-train, is no part of the package: xffl deploy puts it into
place at a facility.")
set(CPACK_DEBIAN_PACKAGE_SUGGESTS openssh-client)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
    OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_CURRENT_LIST_DIR}/debian_files.cmake)
set(CPACK_INSTALL_CMAKE_PROJECTS)
foreach(component xffl xffl-tokenize doc)
  list(APPEND CPACK_INSTALL_CMAKE_PROJECTS ${CMAKE_BINARY_DIR} xffl ${component} /)
endforeach()
include(CPack)
