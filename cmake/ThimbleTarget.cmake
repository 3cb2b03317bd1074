# Flags shared by every target of ours, and the one function that declares a library per folder.

add_library(thimble_flags INTERFACE)
target_compile_options(thimble_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow;-Wconversion;-Wno-sign-conversion>)
# GCC 12 sees overlapping copies in its own std::string (PR 105651).
target_compile_options(thimble_flags INTERFACE $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-restrict>)
if(THIMBLE_WERROR)
  target_compile_options(thimble_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
if(THIMBLE_SANITIZE)
  target_compile_options(thimble_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${THIMBLE_SANITIZE};-fno-sanitize-recover=all;-fno-omit-frame-pointer>)
  target_compile_options(thimble_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-UNDEBUG>)  # assert() too
  target_link_options(thimble_flags INTERFACE -fsanitize=${THIMBLE_SANITIZE})
endif()
if(THIMBLE_COVERAGE)
  target_compile_options(thimble_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:--coverage>)
  target_link_options(thimble_flags INTERFACE --coverage)
endif()
if(THIMBLE_FUZZ)
  target_compile_options(thimble_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

# thimble_library(<folder> SOURCES ... PUBLIC ... PRIVATE ...): the static library thimble_<folder>.
# PUBLIC and PRIVATE list what it links; folders above it in the diamond never appear there.
function(thimble_library folder)
  cmake_parse_arguments(ARG "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  set(target thimble_${folder})
  add_library(${target} STATIC ${ARG_SOURCES})
  add_library(thimble::${folder} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${folder} POSITION_INDEPENDENT_CODE ON)
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/thimble>)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_link_libraries(${target} PUBLIC ${ARG_PUBLIC} PRIVATE ${ARG_PRIVATE} $<BUILD_INTERFACE:thimble_flags>)
endfunction()
