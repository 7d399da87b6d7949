# SPDX-License-Identifier: Apache-2.0
#
# find_package(onehop) accepts what runs with the library: every older version of the same major, as
# its SONAME says; no newer one, and no other major.
#   cmake -D VERSION_FILE=.../onehopConfigVersion.cmake -D VERSION=1.2.3 -P package_version.cmake
cmake_minimum_required(VERSION 3.22)

function(expect wanted compatible)
  string(REPLACE "." ";" parts ${wanted})
  list(GET parts 0 PACKAGE_FIND_VERSION_MAJOR)
  set(PACKAGE_FIND_VERSION ${wanted})
  set(PACKAGE_FIND_VERSION_COUNT 3)
  include(${VERSION_FILE})
  if(NOT PACKAGE_VERSION VERSION_EQUAL VERSION)
    message(FATAL_ERROR "the package says that its version is ${PACKAGE_VERSION}, not ${VERSION}")
  endif()
  if(compatible AND NOT PACKAGE_VERSION_COMPATIBLE)
    message(FATAL_ERROR "version ${VERSION} does not satisfy find_package(onehop ${wanted})")
  elseif(NOT compatible AND PACKAGE_VERSION_COMPATIBLE)
    message(FATAL_ERROR "version ${VERSION} satisfies find_package(onehop ${wanted})")
  endif()
endfunction()

string(REPLACE "." ";" own ${VERSION})
list(GET own 0 major)
list(GET own 1 minor)
list(GET own 2 patch)
math(EXPR next_major "${major} + 1")
math(EXPR next_minor "${minor} + 1")
math(EXPR next_patch "${patch} + 1")
expect(${VERSION} TRUE)
foreach(older RANGE 0 ${minor})
  expect(${major}.${older}.0 TRUE)
endforeach()
expect(${major}.${minor}.${next_patch} FALSE)
expect(${major}.${next_minor}.0 FALSE)
expect(${next_major}.0.0 FALSE)
