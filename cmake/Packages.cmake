# `cpack` in a build folder makes a package of Debian: what `cmake --install` puts there, with man pages of the commands'
# own help and completions for bash and zsh.
option(THIMBLE_MAN "Make man pages of the help texts (runs the program that was built)" ON)

if(THIMBLE_MAN AND NOT CMAKE_CROSSCOMPILING)
  set(man_folder ${PROJECT_BINARY_DIR}/man)
  add_custom_command(OUTPUT ${man_folder}/thimble.1
    COMMAND ${PROJECT_SOURCE_DIR}/scripts/man-pages $<TARGET_FILE:thimble> ${man_folder}
    DEPENDS thimble ${PROJECT_SOURCE_DIR}/scripts/man-pages VERBATIM)
  add_custom_target(man_pages ALL DEPENDS ${man_folder}/thimble.1)
  install(DIRECTORY ${man_folder}/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 FILES_MATCHING PATTERN "*.1")
endif()
install(FILES cmake/completions/thimble.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME thimble)
install(FILES cmake/completions/_thimble DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME thimble)
set(CPACK_PACKAGE_CONTACT "the authors of thimble <thimble@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY ${PROJECT_DESCRIPTION})
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON) # what the program needs at run time, from dpkg-shlibdeps (package dpkg-dev)
set(CPACK_DEBIAN_PACKAGE_SUGGESTS gnuplot-nox)
set(CPACK_STRIP_FILES ON)
include(CPack)
