# SPDX-License-Identifier: Apache-2.0
#
# onehop_kernel_image(<variable> SOURCE <file.cu> ARCHITECTURES <numbers> INCLUDE <folders>): compiles kernels, and sets the
# variable to an assembler file that embeds them between oh_kernel_image_begin and oh_kernel_image_end. Machine code for each
# architecture, and PTX of the first two, for GPUs of other ones.

function(onehop_kernel_image variable)
  cmake_parse_arguments(IMAGE "" "SOURCE" "ARCHITECTURES;INCLUDE" ${ARGN})
  if(NOT IMAGE_ARCHITECTURES MATCHES "^[0-9]+[af]?(;[0-9]+[af]?)*$")
    message(FATAL_ERROR "onehop: ONEHOP_CUDA_ARCHITECTURES is \"${IMAGE_ARCHITECTURES}\": give numbers such as 80;90, "
      "or build without kernels: -DONEHOP_CUDA=OFF")
  endif()
  set(ONEHOP_FATBIN ${CMAKE_CURRENT_BINARY_DIR}/kernels.fatbin)
  set(options "")
  foreach(number IN LISTS IMAGE_ARCHITECTURES)
    list(APPEND options -gencode=arch=compute_${number},code=sm_${number})
  endforeach()
  list(SUBLIST IMAGE_ARCHITECTURES 0 2 in_ptx)
  foreach(number IN LISTS in_ptx)
    list(APPEND options -gencode=arch=compute_${number},code=compute_${number})
  endforeach()
  list(TRANSFORM IMAGE_INCLUDE PREPEND -I OUTPUT_VARIABLE includes)
  # --threads 0: the architectures side by side.
  add_custom_command(
    OUTPUT ${ONEHOP_FATBIN}
    COMMAND ${ONEHOP_NVCC_PROGRAM} ${ONEHOP_NVCC_FLAGS} -std=c++17 -O3 --threads 0 --fatbin ${options} ${includes}
            -MD -MF ${ONEHOP_FATBIN}.d -MT ${ONEHOP_FATBIN} -o ${ONEHOP_FATBIN} ${IMAGE_SOURCE}
    DEPENDS ${IMAGE_SOURCE}
    DEPFILE ${ONEHOP_FATBIN}.d
    VERBATIM)
  set(image ${CMAKE_CURRENT_BINARY_DIR}/image.S)
  configure_file(${PROJECT_SOURCE_DIR}/src/kernels/image.S.in ${image} @ONLY)
  set_source_files_properties(${image} PROPERTIES OBJECT_DEPENDS ${ONEHOP_FATBIN})
  set(${variable} ${image} PARENT_SCOPE)
endfunction()
