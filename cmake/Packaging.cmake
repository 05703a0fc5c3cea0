# The Debian packages: `penstock` is the component of the same name, `penstock-lab` the component `lab` where there is
# one. scripts/package builds them. What only a package has is left out of a plain `cmake --install`.
include(GNUInstallDirs)
set(package_only COMPONENT penstock EXCLUDE_FROM_ALL)
set(debian ${PROJECT_SOURCE_DIR}/deploy/debian)
set(packaged ${CMAKE_BINARY_DIR}/package)
set(documents ${CMAKE_INSTALL_DATADIR}/doc/penstock)

install(DIRECTORY ${PROJECT_SOURCE_DIR}/models/penstock-tiny COMPONENT penstock
  DESTINATION ${CMAKE_INSTALL_DATADIR}/penstock/models)

file(GLOB units ${PROJECT_SOURCE_DIR}/deploy/systemd/*.service)
install(FILES ${units} DESTINATION lib/systemd/system ${package_only})
# Debian's policy has them in /etc wherever the prefix is.
set(defaults router prefill decode)
set(conffiles "")
foreach(name IN LISTS defaults)
  install(FILES ${PROJECT_SOURCE_DIR}/deploy/systemd/${name}.env DESTINATION /etc/penstock ${package_only})
  string(APPEND conffiles "/etc/penstock/${name}.env\n")
endforeach()
file(WRITE ${packaged}/conffiles "${conffiles}")

install(FILES ${debian}/copyright DESTINATION ${documents} ${package_only})
install(FILES ${PROJECT_SOURCE_DIR}/CHANGELOG.md RENAME changelog DESTINATION ${documents} ${package_only})
install(FILES ${PROJECT_SOURCE_DIR}/docs/operations/install.md RENAME README.md DESTINATION ${documents} ${package_only})
install(FILES ${debian}/lintian-overrides RENAME penstock
  DESTINATION ${CMAKE_INSTALL_DATADIR}/lintian/overrides ${package_only})

set(packaged_programs penstock penstock-router penstock-prefill penstock-decode)
set(CPACK_COMPONENTS_ALL penstock)
if(TARGET penstock-lab)
  list(APPEND packaged_programs penstock-lab penstock-lab-world penstock-lab-manuals)
  list(APPEND CPACK_COMPONENTS_ALL lab)
  install(FILES ${debian}/copyright DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/penstock-lab
    COMPONENT lab EXCLUDE_FROM_ALL)
  install(FILES ${debian}/lab.lintian-overrides RENAME penstock-lab
    DESTINATION ${CMAKE_INSTALL_DATADIR}/lintian/overrides COMPONENT lab EXCLUDE_FROM_ALL)
endif()
add_custom_target(package-contents DEPENDS ${packaged_programs} penstock-manuals)

set(CPACK_GENERATOR DEB)
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_PACKAGE_NAME penstock)
set(CPACK_PACKAGE_CONTACT "Penstock maintainers <maintainers@penstock.invalid>" CACHE STRING
    "The Maintainer field of packages")
set(CPACK_STRIP_FILES ON)
set(CPACK_SET_DESTDIR ON)  # for /etc
set(CPACK_INSTALL_PREFIX /usr)
# Compresses manuals and changelogs as Debian's policy wants it, and gives every file the same date.
set(CPACK_PRE_BUILD_SCRIPTS ${debian}/finish.cmake)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

set(CPACK_COMPONENT_PENSTOCK_DESCRIPTION
"Penstock serves large language models with prefill and decode apart: a router
sends each prompt to a prefill worker, which pushes the KV cache of the prompt
to a decode worker while it is still computing.
This package has the programs, systemd units for them, and a small model.")
set(CPACK_DEBIAN_PENSTOCK_PACKAGE_NAME penstock)
set(CPACK_DEBIAN_PENSTOCK_DESCRIPTION
"large language models with prefill and decode on separate workers
${CPACK_COMPONENT_PENSTOCK_DESCRIPTION}")
set(CPACK_DEBIAN_PENSTOCK_PACKAGE_DEPENDS adduser)
set(CPACK_DEBIAN_PENSTOCK_PACKAGE_CONTROL_EXTRA
  ${packaged}/conffiles ${debian}/postinst ${debian}/prerm ${debian}/postrm)

set(CPACK_DEBIAN_LAB_PACKAGE_NAME penstock-lab)
set(CPACK_DEBIAN_LAB_DESCRIPTION
"benchmarks, simulation and planning for Penstock
penstock-lab measures a machine and a server, replays traces through the
router's placement, and says how many workers a load needs.")
set(CPACK_DEBIAN_LAB_PACKAGE_RECOMMENDS penstock)
include(CPack)
