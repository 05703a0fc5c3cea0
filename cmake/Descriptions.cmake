include(GNUInstallDirs)

# penstock_descriptions(PROGRAM penstock PAGES penstock penstock-router COMPONENT penstock)
# The man pages of PAGES and the shell completion of all of them, as PROGRAM prints them from the
# declared command lines; installed with the COMPONENT.
function(penstock_descriptions)
  cmake_parse_arguments(D "" "PROGRAM;COMPONENT" "PAGES" ${ARGN})
  set(described ${CMAKE_BINARY_DIR}/share)
  file(MAKE_DIRECTORY ${described})
  set(pages)
  foreach(page ${D_PAGES})
    add_custom_command(OUTPUT ${described}/${page}.1
      COMMAND ${D_PROGRAM} manual ${page} > ${described}/${page}.1 DEPENDS ${D_PROGRAM} VERBATIM)
    list(APPEND pages ${described}/${page}.1)
  endforeach()
  set(bash ${described}/${D_PROGRAM}.bash)
  set(zsh ${described}/_${D_PROGRAM})
  add_custom_command(OUTPUT ${bash} ${zsh}
    COMMAND ${D_PROGRAM} completion bash > ${bash}
    COMMAND ${D_PROGRAM} completion zsh > ${zsh} DEPENDS ${D_PROGRAM} VERBATIM)
  add_custom_target(${D_PROGRAM}-manuals ALL DEPENDS ${pages} ${bash} ${zsh})

  install(FILES ${pages} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT ${D_COMPONENT})
  install(FILES ${zsh} DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions
    COMPONENT ${D_COMPONENT})
  # bash-completion looks a command's script up by the command's name.
  foreach(page ${D_PAGES})
    install(FILES ${bash} RENAME ${page}
      DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions COMPONENT ${D_COMPONENT})
  endforeach()
endfunction()
