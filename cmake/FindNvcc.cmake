# SPDX-License-Identifier: Apache-2.0
#
# Finds nvcc: ONEHOP_NVCC (a path, or "system" for the one on PATH), else the wheels nvidia-cuda-nvcc
# and its kin in the Python environment of the build, else the one on PATH. Sets ONEHOP_NVCC_PROGRAM
# and ONEHOP_NVCC_FLAGS.
function(onehop_find_nvcc)
  set(program "")
  set(flags "")
  set(wanted "${ONEHOP_NVCC}")
  if(NOT wanted AND DEFINED ENV{ONEHOP_NVCC})
    set(wanted "$ENV{ONEHOP_NVCC}")
  endif()
  if(wanted AND NOT wanted STREQUAL "system")
    set(program "${wanted}")
  endif()
  if(NOT program AND NOT wanted STREQUAL "system")
    find_package(Python 3.10 COMPONENTS Interpreter QUIET)
    if(Python_Interpreter_FOUND)
      execute_process(
        COMMAND "${Python_EXECUTABLE}" -c
          "import pathlib, sys\nfor p in map(pathlib.Path, sys.path):\n    for n in sorted(p.glob('nvidia/cu1*/bin/nvcc')):\n        print(n); raise SystemExit"
        OUTPUT_VARIABLE program OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    endif()
  endif()
  if(NOT program)
    find_program(found nvcc PATHS /usr/local/cuda/bin NO_CACHE)
    if(found)
      set(program "${found}")
    endif()
  endif()
  if(NOT program)
    message(FATAL_ERROR
      "onehop: no nvcc. Install the wheels (pip install nvidia-cuda-nvcc nvidia-nvvm nvidia-cuda-crt "
      "nvidia-cuda-runtime nvidia-cuda-cccl, each ==13.0.*), or give -DONEHOP_NVCC=/path/to/nvcc, or "
      "build without kernels: -DONEHOP_CUDA=OFF")
  endif()
  execute_process(COMMAND "${program}" --version OUTPUT_VARIABLE text ERROR_VARIABLE text
                  RESULT_VARIABLE failed)
  if(failed OR NOT text MATCHES "release ([0-9]+\\.[0-9]+)")
    message(FATAL_ERROR "onehop: ${program} --version failed: ${text}")
  endif()
  if(CMAKE_MATCH_1 VERSION_LESS 12.8)
    message(FATAL_ERROR "onehop: ${program} is release ${CMAKE_MATCH_1}, 12.8 or newer is needed")
  endif()
  message(STATUS "onehop: kernels by ${program} (release ${CMAKE_MATCH_1})")
  list(APPEND flags -ccbin "${ONEHOP_NVCC_HOST_COMPILER}" -allow-unsupported-compiler)
  set(ONEHOP_NVCC_PROGRAM "${program}" PARENT_SCOPE)
  set(ONEHOP_NVCC_FLAGS "${flags}" PARENT_SCOPE)
endfunction()
