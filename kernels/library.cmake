# The kernels of the library implementation of the hot CUDA operations, where nvcc and the libraries'
# headers are (cmake/GpuLibraries.cmake): penstock_library_kernels. For a project that has CUDA
# enabled; `root` is the folder of the sources.
function(penstock_add_library_kernels root)
  penstock_find_gpu_libraries(${root})
  if(NOT TARGET penstock_gpu_headers)
    return()
  endif()
  set(room ${root}/kernels/library)
  file(GLOB kernels CONFIGURE_DEPENDS ${room}/*.cu)
  add_library(penstock_library_kernels STATIC EXCLUDE_FROM_ALL ${kernels} ${room}/gemm_launch.cc ${room}/gemm_plan.cc ${room}/prefill_launch.cc
              ${room}/prefill_plan.cc)
  target_include_directories(penstock_library_kernels PUBLIC ${root})
  target_link_libraries(penstock_library_kernels PRIVATE penstock_gpu_headers PUBLIC CUDA::cudart_static)
  # wgmma and TMA are instructions of sm_90a only. FlashInfer expects -use_fast_math.
  set_target_properties(penstock_library_kernels PROPERTIES CUDA_ARCHITECTURES 90a-real)
  target_compile_options(penstock_library_kernels PRIVATE
                         "$<$<COMPILE_LANGUAGE:CUDA>:-O3;-DNDEBUG;--expt-relaxed-constexpr;-use_fast_math;--diag-suppress=177,20012>")
  # A file takes up to 4 GB to compile, so few are compiled at once.
  cmake_host_system_information(RESULT memory QUERY TOTAL_PHYSICAL_MEMORY)  # MiB
  math(EXPR jobs "${memory} / 6144")
  if(jobs LESS 1)
    set(jobs 1)
  endif()
  set_property(GLOBAL APPEND PROPERTY JOB_POOLS penstock_heavy=${jobs})
  set_target_properties(penstock_library_kernels PROPERTIES JOB_POOL_COMPILE penstock_heavy)
endfunction()
