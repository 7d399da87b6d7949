# SPDX-License-Identifier: Apache-2.0
#
# onehop_find_in_wheels(<variable> <pattern>): sets the variable to the first file in Python's packages that matches, as
# nvidia/cu1*/bin/nvcc; empty: there is none.
function(onehop_find_in_wheels variable pattern)
  set(found "")
  find_package(Python 3.10 COMPONENTS Interpreter QUIET)
  if(Python_Interpreter_FOUND)
    execute_process(
      COMMAND "${Python_EXECUTABLE}" -c
        "import pathlib, sys\nfor p in map(pathlib.Path, sys.path):\n    for n in sorted(p.glob(sys.argv[1])):\n        print(n); raise SystemExit"
        "${pattern}"
      OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
  set(${variable} "${found}" PARENT_SCOPE)
endfunction()
