# SPDX-License-Identifier: Apache-2.0
#
# Finds the headers of NVTX 3 (nvtx3/nvToolsExt.h): the wheel nvidia-nvtx in the Python environment of the build, else those
# of a CUDA toolkit or of the system. Sets ONEHOP_NVTX_INCLUDE. Where there are none and ONEHOP_NVTX is AUTO, the build has no
# ranges.
include(FindInWheels)

function(onehop_find_nvtx)
  onehop_find_in_wheels(header "nvidia/*/include/nvtx3/nvToolsExt.h")
  get_filename_component(folder "${header}/../.." ABSOLUTE)
  find_path(found nvtx3/nvToolsExt.h HINTS "${folder}" PATHS /usr/local/cuda/include NO_CACHE)
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
