# CPack runs this over what it installed, before it makes packages of it: manuals and changelogs are compressed, Debian's
# changelog is written, and all files get the date of SOURCE_DATE_EPOCH, so that equal contents give equal packages.
if(NOT DEFINED ENV{SOURCE_DATE_EPOCH})
  message(FATAL_ERROR "SOURCE_DATE_EPOCH is not set: build packages with scripts/package")
endif()

function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

# Debian's zsh looks for a package's completions in vendor-completions.
file(GLOB completions ${CPACK_TEMPORARY_DIRECTORY}/*/usr/share/zsh/site-functions)
foreach(folder IN LISTS completions)
  get_filename_component(parent ${folder} DIRECTORY)
  file(RENAME ${folder} ${parent}/vendor-completions)
endforeach()

string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)
file(GLOB documents ${CPACK_TEMPORARY_DIRECTORY}/*/usr/share/doc/*)
foreach(folder IN LISTS documents)
  get_filename_component(package ${folder} NAME)
  file(WRITE ${folder}/changelog.Debian
    "${package} (${CPACK_PACKAGE_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE}) bookworm; urgency=medium\n\n"
    "  * Version ${CPACK_PACKAGE_VERSION}.\n\n"
    " -- ${CPACK_PACKAGE_CONTACT}  ${date}\n")
  file(CHMOD ${folder}/changelog.Debian PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
endforeach()

file(GLOB texts
  ${CPACK_TEMPORARY_DIRECTORY}/*/usr/share/man/man*/*
  ${CPACK_TEMPORARY_DIRECTORY}/*/usr/share/doc/*/changelog*)
run(gzip -9nf ${texts})
# CPack makes folders with the caller's umask.
run(find ${CPACK_TEMPORARY_DIRECTORY} -type d -exec chmod 755 {} +)
run(find ${CPACK_TEMPORARY_DIRECTORY} -exec touch --no-dereference --date=@$ENV{SOURCE_DATE_EPOCH} {} +)
