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
  # Instrumented programs have a million addresses, which each start would have to move.
  target_link_options(thimble_flags INTERFACE $<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:-no-pie>)
endif()
if(THIMBLE_COVERAGE)
  target_compile_options(thimble_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:--coverage>)
  target_link_options(thimble_flags INTERFACE --coverage)
endif()
if(THIMBLE_FUZZ)
  target_compile_options(thimble_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

# For code that nobody waits for.
set(thimble_least_optimised -Og)
if(THIMBLE_SANITIZE)
  set(thimble_least_optimised -O0)
endif()

# Headers that most sources include and that take long to read are read once. A compiler cache cannot see into what was
# precompiled, so with one there is nothing of it; every source includes what it uses.
option(THIMBLE_PRECOMPILE "Precompile the headers of libraries that most sources include" ON)
if(NOT THIMBLE_PRECOMPILE OR CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_DISABLE_PRECOMPILE_HEADERS ON)
else()  # from there, GCC 12 also warns of endless copies in its own std::string (PR 105329)
  target_compile_options(thimble_flags INTERFACE
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-stringop-overflow;-Wno-array-bounds>)
endif()
set(thimble_common_headers <algorithm> <array> <cmath> <filesystem> <functional> <map> <memory> <optional> <set> <span>
  <string> <vector> <nlohmann/json.hpp>)

# Sources are compiled several at a time: most of what a compiler does for one of ours is what it does for the next one
# too, headers and templates. So names in anonymous namespaces are a library's own, and a test's are in a namespace named
# as its file. OFF, as it is with a compiler cache, compiles each alone: quicker after small changes, and it shows what a
# source forgot to include.
if(CMAKE_CXX_COMPILER_LAUNCHER)
  set(unity_default OFF)
else()
  set(unity_default ON)
endif()
option(THIMBLE_UNITY "Compile several sources of a library, or of a test program, at a time" ${unity_default})

# thimble_join_sources(<target>): compiles 16 of its sources at a time, where THIMBLE_UNITY says so: an eighth less work
# than 8, and enough parts for two cores.
function(thimble_join_sources target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${THIMBLE_UNITY} UNITY_BUILD_BATCH_SIZE 16)
  # Device code, which CMake 3.31 and later would join too, takes its time for kernels, not for headers.
  file(GLOB_RECURSE device_code ${CMAKE_CURRENT_SOURCE_DIR}/*.cu)
  set_source_files_properties(${device_code} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# thimble_precompiled(<target> LINK <libraries whose headers are named> HEADERS ... OPTIONS <of the compiler>): a target
# that others reuse these headers from: those with the same flags, whatever else they define.
function(thimble_precompiled target)
  cmake_parse_arguments(ARG "" "" "LINK;HEADERS;OPTIONS" ${ARGN})
  set(empty ${CMAKE_CURRENT_BINARY_DIR}/${target}.cpp)  # CMake precompiles beside a source, or not at all
  file(CONFIGURE OUTPUT ${empty} CONTENT "")
  add_library(${target} OBJECT ${empty})
  target_link_libraries(${target} PRIVATE ${ARG_LINK} thimble_flags)
  target_compile_options(${target} PRIVATE ${ARG_OPTIONS})
  target_precompile_headers(${target} PRIVATE ${thimble_common_headers} ${ARG_HEADERS})
endfunction()

# thimble_library(<folder> SOURCES ... PUBLIC ... PRIVATE ... HEADERS_OF <target>): the static library thimble_<folder>.
# HEADERS_OF: a thimble_precompiled() target of the same flags; without it thimble_library_headers.
# PUBLIC and PRIVATE list what it links; folders above it in the diamond never appear there.
function(thimble_library folder)
  cmake_parse_arguments(ARG "" "HEADERS_OF" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  set(target thimble_${folder})
  add_library(${target} STATIC ${ARG_SOURCES})
  add_library(thimble::${folder} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${folder} POSITION_INDEPENDENT_CODE ON)
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/thimble>)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_link_libraries(${target} PUBLIC ${ARG_PUBLIC} PRIVATE ${ARG_PRIVATE} $<BUILD_INTERFACE:thimble_flags>)
  if(ARG_HEADERS_OF)
    target_precompile_headers(${target} REUSE_FROM ${ARG_HEADERS_OF})
  else()
    target_precompile_headers(${target} REUSE_FROM thimble_library_headers)
  endif()
  thimble_join_sources(${target})
endfunction()
