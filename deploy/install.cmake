# What `cmake --install` puts where, and the Debian packages of `cpack -G DEB`: a component is a package. deploy/README.md lists
# what is in which. Included by CMakeLists.txt.
if(EXISTS /etc/debian_version AND CMAKE_LIBRARY_ARCHITECTURE AND NOT DEFINED CMAKE_INSTALL_LIBDIR)
  set(CMAKE_INSTALL_LIBDIR lib/${CMAKE_LIBRARY_ARCHITECTURE} CACHE PATH "where libraries are installed")  # below /usr/local too
endif()
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# --- the C++ client as one archive, of the same objects as the rooms ---------------------------------
add_library(prefixd_cpp STATIC)
foreach(room os base quant kernels block interop wire proto client)
  target_sources(prefixd_cpp PRIVATE $<TARGET_OBJECTS:prefixd_${room}>)
endforeach()
set_target_properties(prefixd_cpp PROPERTIES LINKER_LANGUAGE CXX OUTPUT_NAME prefixd_client
  ARCHIVE_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/installed)
add_dependencies(programs prefixd_cpp)

# --- programs and libraries --------------------------------------------------------------------------
install(TARGETS prefixd prefixctl prefixd-llama RUNTIME COMPONENT prefixd)
install(TARGETS prefixd-worker RUNTIME COMPONENT dev)
set(libraries prefixd_c)
if(TARGET prefixd_cuda)
  list(APPEND libraries prefixd_cuda)
  add_dependencies(programs prefixd_cuda prefixd_worker_cuda)
  # Only the worker loads it, from this folder.
  install(TARGETS prefixd_worker_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT dev)
  file(RELATIVE_PATH libraries_of_programs /prefix/${CMAKE_INSTALL_BINDIR} /prefix/${CMAKE_INSTALL_LIBDIR})
  set_target_properties(prefixd-worker PROPERTIES INSTALL_RPATH "\$ORIGIN/${libraries_of_programs}")
endif()
install(TARGETS ${libraries} LIBRARY COMPONENT lib NAMELINK_COMPONENT dev)
install(TARGETS prefixd_cpp ARCHIVE COMPONENT dev)
file(GLOB public_headers CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/client/include/prefixd/*.h ${CMAKE_SOURCE_DIR}/client/c/prefixd*.h)
foreach(header ${public_headers})
  get_filename_component(name ${header} NAME)
  # cuda.h and prefixd_llama.h include "prefixd.h": the C headers stand beside it, the C++ ones in prefixd/.
  set(folder ${CMAKE_INSTALL_INCLUDEDIR})
  if(header MATCHES "/client/include/")
    set(folder ${CMAKE_INSTALL_INCLUDEDIR}/prefixd)
  endif()
  install(FILES ${header} DESTINATION ${folder} COMPONENT dev)
endforeach()

# --- find_package(prefixd) and pkg-config --------------------------------------------------------------
set(config_folder ${CMAKE_INSTALL_LIBDIR}/cmake/prefixd)
configure_package_config_file(${CMAKE_SOURCE_DIR}/deploy/cmake/prefixdConfig.cmake.in ${CMAKE_BINARY_DIR}/installed/prefixdConfig.cmake
  INSTALL_DESTINATION ${config_folder} PATH_VARS CMAKE_INSTALL_INCLUDEDIR CMAKE_INSTALL_LIBDIR)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/installed/prefixdConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/installed/prefixdConfig.cmake ${CMAKE_BINARY_DIR}/installed/prefixdConfigVersion.cmake
  DESTINATION ${config_folder} COMPONENT dev)
file(RELATIVE_PATH PREFIXD_PC_UP /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)  # a .pc file may move with its prefix
foreach(name prefixd prefixd-client)
  configure_file(${CMAKE_SOURCE_DIR}/deploy/cmake/${name}.pc.in ${CMAKE_BINARY_DIR}/installed/${name}.pc @ONLY)
  install(FILES ${CMAKE_BINARY_DIR}/installed/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT dev)
endforeach()

# --- what depends on the prefix of the installation, or is made by the programs themselves -------------
foreach(component prefixd lib dev python)
  install(CODE "
    cmake_policy(VERSION 3.25)
    set(source \"${CMAKE_SOURCE_DIR}\")
    set(build \"${CMAKE_BINARY_DIR}\")
    set(interpreter \"${PREFIXD_PYTHON}\")
    set(part ${component})
    set(version ${PROJECT_VERSION})
    set(apple \"${APPLE}\")
    include(\"${CMAKE_SOURCE_DIR}/deploy/cmake/at_install.cmake\")"
    COMPONENT ${component})
endforeach()

# --- Debian packages ------------------------------------------------------------------------------------
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_VENDOR "prefixd")
set(CPACK_PACKAGE_CONTACT "prefixd maintainers <maintainers@prefixd.example>")
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_DIRECTORY ${CMAKE_BINARY_DIR}/packages)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${CMAKE_BINARY_DIR})
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_ALL prefixd lib dev python)
set(CPACK_PROJECT_CONFIG_FILE ${CMAKE_SOURCE_DIR}/deploy/cmake/cpack.cmake)
set(CPACK_PREFIXD_SOURCE ${CMAKE_SOURCE_DIR})
include(CPack)
