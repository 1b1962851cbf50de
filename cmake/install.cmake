# `cmake --install`: command, headers, library, CMake package, pkg-config, man page, completion. Component "development".
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS gradweave EXPORT gradweaveTargets COMPONENT development)
install(DIRECTORY include/gradweave DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development
        PATTERN torch.h EXCLUDE)
if(TARGET gradweave_cli)
  install(TARGETS gradweave_cli COMPONENT development)
  if(SKBUILD)  # a wheel has the command too
    install(TARGETS gradweave_cli DESTINATION ${SKBUILD_SCRIPTS_DIR} COMPONENT python EXCLUDE_FROM_ALL)
  endif()
endif()
install(FILES docs/gradweave.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT development)
install(FILES completions/gradweave.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME gradweave
        COMPONENT development)
install(FILES completions/_gradweave DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions COMPONENT development)
install(FILES completions/gradweave.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d
        COMPONENT development)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/gradweave)
configure_package_config_file(cmake/gradweaveConfig.cmake.in ${CMAKE_BINARY_DIR}/package/gradweaveConfig.cmake
                              INSTALL_DESTINATION ${package})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/package/gradweaveConfigVersion.cmake COMPATIBILITY SameMinorVersion)
file(RELATIVE_PATH prefix_from_pkgconfig /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)  # any --prefix
configure_file(cmake/gradweave.pc.in ${CMAKE_BINARY_DIR}/package/gradweave.pc @ONLY)
install(EXPORT gradweaveTargets NAMESPACE gradweave:: DESTINATION ${package} COMPONENT development)
install(FILES ${CMAKE_BINARY_DIR}/package/gradweaveConfig.cmake ${CMAKE_BINARY_DIR}/package/gradweaveConfigVersion.cmake
        DESTINATION ${package} COMPONENT development)
install(FILES ${CMAKE_BINARY_DIR}/package/gradweave.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)
