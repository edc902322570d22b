# Called by cpack in the installed tree, before it makes the Debian package: the files that Debian's policy asks for.
set(share ${CPACK_TEMPORARY_INSTALL_DIRECTORY}/usr/share)
set(doc ${share}/doc/xffl)

function(compress)
  execute_process(COMMAND gzip -9n ${ARGV} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(GLOB pages ${share}/man/man1/*.1)
foreach(page ${pages})
  # A page of one line refers to another page, which has the suffix now.
  file(READ ${page} text)
  if(text MATCHES "^\\.so man1/([^\n]+)\n$")
    file(REMOVE ${page})
    file(CREATE_LINK ${CMAKE_MATCH_1}.gz ${page}.gz SYMBOLIC)
  else()
    compress(${page})
  endif()
endforeach()
file(RENAME ${doc}/CHANGELOG.md ${doc}/changelog)
string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)
file(WRITE ${doc}/changelog.Debian "xffl (${CPACK_PACKAGE_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE}) unstable; urgency=medium

  * Package of xffl ${CPACK_PACKAGE_VERSION}; /usr/share/doc/xffl/changelog.gz has the changes.

 -- ${CPACK_DEBIAN_PACKAGE_MAINTAINER}  ${date}
")
compress(${doc}/changelog ${doc}/changelog.Debian)
file(REMOVE ${doc}/LICENSE)  # in /usr/share/common-licenses
file(WRITE ${doc}/copyright "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: xffl

Files: *
Copyright: 2026 The xffl authors
License: Apache-2.0
 On Debian systems the full text of the Apache License, Version 2.0, is in
 /usr/share/common-licenses/Apache-2.0.
")
# lintian's findings that hold only for an upload to Debian's archive.
set(overrides "# The package is not uploaded to Debian's archive.
xffl: initial-upload-closes-no-bugs
")
if(CPACK_DEBIAN_PACKAGE_MAINTAINER MATCHES "@localhost\\.localdomain>$")
  string(APPEND overrides "# The project has no mail address.
xffl: bogus-mail-host
xffl: bogus-mail-host-in-debian-changelog
")
endif()
file(WRITE ${share}/lintian/overrides/xffl "${overrides}")
