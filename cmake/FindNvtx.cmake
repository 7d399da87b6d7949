# SPDX-License-Identifier: Apache-2.0
#
# Finds the headers of NVTX 3 (nvtx3/nvToolsExt.h): the wheel nvidia-nvtx in the Python environment of the build, else those
# of a CUDA toolkit or of the system. Sets ONEHOP_NVTX_INCLUDE. Where there are none and ONEHOP_NVTX is AUTO, the build has no
# ranges.
function(onehop_find_nvtx)
  set(folders "")
  find_package(Python 3.10 COMPONENTS Interpreter QUIET)
  if(Python_Interpreter_FOUND)
    execute_process(
      COMMAND "${Python_EXECUTABLE}" -c
        "import pathlib, sys\nfor p in map(pathlib.Path, sys.path):\n    for n in sorted(p.glob('nvidia/*/include/nvtx3')):\n        print(n.parent); raise SystemExit"
      OUTPUT_VARIABLE folders OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
  find_path(found nvtx3/nvToolsExt.h HINTS ${folders} PATHS /usr/local/cuda/include NO_CACHE)
  if(found)
    message(STATUS "onehop: NVTX ranges by the headers in ${found}")
    set(ONEHOP_NVTX_INCLUDE "${found}" PARENT_SCOPE)
  elseif(ONEHOP_NVTX STREQUAL "AUTO")
    message(STATUS "onehop: no NVTX ranges: there is no nvtx3/nvToolsExt.h; pip install nvidia-nvtx brings it")
  else()
    message(FATAL_ERROR "onehop: ONEHOP_NVTX is ${ONEHOP_NVTX}, and there is no nvtx3/nvToolsExt.h: pip install nvidia-nvtx, "
      "or build without ranges: -DONEHOP_NVTX=OFF")
  endif()
endfunction()
