# Copies of files that the build takes instead of the files themselves: `./ladder lab use reference 3.3` puts the
# reference of a task into one while a student's text stays where it is (lab/README.md).
set(LADDER_SPLICED ${CMAKE_SOURCE_DIR}/.lab/spliced)
file(GLOB_RECURSE LADDER_SPLICED_FILES CONFIGURE_DEPENDS ${LADDER_SPLICED}/*)

# ladder_splice(LIST): replaces in a list of sources each that has such a copy.
function(ladder_splice list)
  foreach(copy ${LADDER_SPLICED_FILES})
    file(RELATIVE_PATH path ${LADDER_SPLICED} ${copy})
    list(FIND ${list} ${CMAKE_SOURCE_DIR}/${path} place)
    if(place GREATER -1)
      list(REMOVE_AT ${list} ${place})
      list(APPEND ${list} ${copy})
    endif()
  endforeach()
  set(${list} ${${list}} PARENT_SCOPE)
endfunction()
