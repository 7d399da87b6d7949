# SPDX-License-Identifier: Apache-2.0
#
# Finds nvcc: ONEHOP_NVCC (a path, or "system" for the one on PATH), else the wheels nvidia-cuda-nvcc
# and its kin in the Python environment of the build, else the one on PATH. Sets ONEHOP_NVCC_PROGRAM
# and ONEHOP_NVCC_FLAGS. Where there is none and ONEHOP_CUDA is AUTO, it says so and sets ONEHOP_CUDA OFF.
include(FindInWheels)

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
    onehop_find_in_wheels(program "nvidia/cu1*/bin/nvcc")
  endif()
  if(NOT program)
    find_program(found nvcc PATHS /usr/local/cuda/bin NO_CACHE)
    if(found)
      set(program "${found}")
    endif()
  endif()
  if(NOT program)
    string(CONCAT remedy
      "Install the wheels (pip install nvidia-cuda-nvcc nvidia-nvvm nvidia-cuda-crt nvidia-cuda-runtime "
      "nvidia-cuda-cccl, each ==13.0.*), or give -DONEHOP_NVCC=/path/to/nvcc")
    if(ONEHOP_CUDA STREQUAL "AUTO" AND NOT wanted)
      message(WARNING "onehop: no nvcc, neither in Python's packages nor on PATH: this build has no CUDA "
        "kernels. ${remedy}; -DONEHOP_CUDA=OFF builds without kernels and without this warning")
      set(ONEHOP_CUDA OFF PARENT_SCOPE)
      return()
    endif()
    message(FATAL_ERROR "onehop: no nvcc, and ONEHOP_CUDA is ${ONEHOP_CUDA}. ${remedy}, or "
      "build without kernels: -DONEHOP_CUDA=OFF")
  endif()
  execute_process(COMMAND "${program}" --version OUTPUT_VARIABLE text ERROR_VARIABLE text
                  RESULT_VARIABLE failed)
  if(failed OR NOT text MATCHES "release ([0-9]+\\.[0-9]+)")
    message(FATAL_ERROR "onehop: ${program} --version failed: ${text}")
  endif()
  if(CMAKE_MATCH_1 VERSION_LESS 12.8)
    message(FATAL_ERROR "onehop: ${program} is release ${CMAKE_MATCH_1}, 12.8 or newer is needed: "
      "give -DONEHOP_NVCC=/path/to/nvcc, or build without kernels: -DONEHOP_CUDA=OFF")
  endif()
  message(STATUS "onehop: kernels by ${program} (release ${CMAKE_MATCH_1})")
  list(APPEND flags -ccbin "${ONEHOP_NVCC_HOST_COMPILER}" -allow-unsupported-compiler)
  set(ONEHOP_NVCC_PROGRAM "${program}" PARENT_SCOPE)
  set(ONEHOP_NVCC_FLAGS "${flags}" PARENT_SCOPE)
endfunction()
