# `cmake --install` puts the program, the libraries below it, their headers and a CMake package (find_package(thimble)).
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/thimble)
install(TARGETS thimble RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS thimble_runtime thimble_gptq thimble_packer thimble_eval EXPORT thimbleTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
foreach(folder runtime gptq packer eval)
  install(DIRECTORY ${folder} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/thimble FILES_MATCHING PATTERN "*.h")
endforeach()
install(EXPORT thimbleTargets NAMESPACE thimble:: DESTINATION ${package_dir})
configure_package_config_file(cmake/thimbleConfig.cmake.in ${PROJECT_BINARY_DIR}/thimbleConfig.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/thimbleConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/thimbleConfig.cmake ${PROJECT_BINARY_DIR}/thimbleConfigVersion.cmake
  DESTINATION ${package_dir})
