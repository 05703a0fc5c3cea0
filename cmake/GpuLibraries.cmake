# FlashInfer's and CUTLASS's headers, for the library implementation of the CUDA operations (kernels/library). Both come in one wheel of
# PyPI, pinned by its hash; scripts/setup --cuda fetches it. Only headers are taken: nothing of it is needed at run time.
#
# penstock_find_gpu_libraries(root [OPTIONAL]) makes the target penstock_gpu_headers. Where they are missing, that is an error, so that no
# build is without them by mistake; with OPTIONAL, and with PENSTOCK_GPU_LIBRARIES=OFF, it says that they are left out.
set(PENSTOCK_GPU_LIBRARIES "" CACHE STRING
    "A folder with FlashInfer's wheel, or with its headers unpacked; OFF: no library kernels; empty: build/gpu-libraries")

# Sets penstock_flashinfer_wheel and penstock_flashinfer_hash from the file that pins them.
macro(penstock_read_gpu_pin root)
  file(STRINGS ${root}/deploy/docker/cuda-library.txt pin REGEX "^flashinfer-python==")
  if(NOT pin MATCHES "^flashinfer-python==([^ ]+) --hash=sha256:([0-9a-f]+)$")
    message(FATAL_ERROR "deploy/docker/cuda-library.txt has no line of the form flashinfer-python==VERSION --hash=sha256:HASH")
  endif()
  set(penstock_flashinfer_wheel flashinfer_python-${CMAKE_MATCH_1}-py3-none-any.whl)
  set(penstock_flashinfer_hash ${CMAKE_MATCH_2})
endmacro()

# Unpacks the headers of the wheel in `folder` once, and sets `result` to their folder.
function(penstock_unpack_gpu_libraries folder result)
  set(wheel ${folder}/${penstock_flashinfer_wheel})
  string(SUBSTRING ${penstock_flashinfer_hash} 0 12 short)
  set(target ${CMAKE_BINARY_DIR}/gpu-libraries-${short})
  set(${result} ${target} PARENT_SCOPE)
  if(EXISTS ${target}/complete)
    return()
  endif()
  file(SHA256 ${wheel} hash)
  if(NOT hash STREQUAL penstock_flashinfer_hash)
    message(FATAL_ERROR "${wheel} has the SHA-256 ${hash}; ${penstock_flashinfer_hash} is pinned. Remove it, then run scripts/setup --cuda.")
  endif()
  file(ARCHIVE_EXTRACT INPUT ${wheel} DESTINATION ${target}
       PATTERNS flashinfer/data/include flashinfer/data/cutlass/include flashinfer/data/cutlass/tools/util/include *.dist-info/licenses)
  file(TOUCH ${target}/complete)
endfunction()

function(penstock_find_gpu_libraries root)
  set(folder "${PENSTOCK_GPU_LIBRARIES}")
  if("${folder}" STREQUAL "OFF")
    message(STATUS "The library kernels are left out: PENSTOCK_GPU_LIBRARIES=OFF")
    return()
  endif()
  penstock_read_gpu_pin(${root})
  if("${folder}" STREQUAL "")
    set(folder ${root}/build/gpu-libraries)
  endif()
  if(EXISTS ${folder}/${penstock_flashinfer_wheel})
    penstock_unpack_gpu_libraries(${folder} folder)
  endif()
  set(headers ${folder}/flashinfer/data)
  if(NOT EXISTS ${headers}/include/flashinfer OR NOT EXISTS ${headers}/cutlass/include/cutlass)
    set(missing "${folder} has neither ${penstock_flashinfer_wheel} nor flashinfer/data/include")
    if("${PENSTOCK_GPU_LIBRARIES}" STREQUAL "" AND "${ARGV1}" STREQUAL "OPTIONAL")
      message(STATUS "The library kernels are left out: ${missing}")
      return()
    endif()
    message(FATAL_ERROR "${missing}: run scripts/setup --gpu-headers, which fetches the wheel into build/gpu-libraries, or set "
                        "PENSTOCK_GPU_LIBRARIES to its folder, or to OFF to build without the library kernels, which are up to four times faster.")
  endif()
  add_library(penstock_gpu_headers INTERFACE)
  target_include_directories(penstock_gpu_headers SYSTEM INTERFACE
                             ${headers}/include ${headers}/cutlass/include ${headers}/cutlass/tools/util/include)
endfunction()
