# The kernels of the library implementation of the hot CUDA operations, where nvcc and the libraries'
# headers are (cmake/GpuLibraries.cmake): penstock_library_gemm and penstock_library_prefill. For a
# project that has CUDA enabled; `root` is the folder of the sources, and OPTIONAL as in
# penstock_find_gpu_libraries.
function(penstock_add_library_kernels root)
  penstock_find_gpu_libraries(${root} ${ARGN})
  if(NOT TARGET penstock_gpu_headers)
    return()
  endif()
  # A file takes up to 4 GB to compile, so few are compiled at once.
  cmake_host_system_information(RESULT memory QUERY TOTAL_PHYSICAL_MEMORY)  # MiB
  math(EXPR jobs "${memory} / 6144")
  if(jobs LESS 1)
    set(jobs 1)
  endif()
  set_property(GLOBAL APPEND PROPERTY JOB_POOLS penstock_heavy=${jobs})
  foreach(part gemm prefill)
    set(name penstock_library_${part})
    file(GLOB kernels CONFIGURE_DEPENDS ${root}/kernels/library/${part}_*.cu)
    add_library(${name} STATIC EXCLUDE_FROM_ALL ${kernels} ${root}/kernels/library/${part}_launch.cc ${root}/kernels/library/${part}_plan.cc)
    target_include_directories(${name} PUBLIC ${root})
    target_link_libraries(${name} PRIVATE penstock_gpu_headers PUBLIC CUDA::cudart_static)
    # wgmma and TMA are instructions of sm_90a only. FlashInfer expects -use_fast_math.
    set_target_properties(${name} PROPERTIES CUDA_ARCHITECTURES 90a-real JOB_POOL_COMPILE penstock_heavy)
    target_compile_options(${name} PRIVATE
                           "$<$<COMPILE_LANGUAGE:CUDA>:-O3;-DNDEBUG;--expt-relaxed-constexpr;-use_fast_math;--diag-suppress=177,20012>")
  endforeach()
endfunction()
