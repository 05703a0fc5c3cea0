# The CUDA kernels: for GPUs by nvcc where PENSTOCK_CUDA is on, and always as C++ over the block
# emulator (tests/cuda/emulator), for tests.
set(cuda_kernels cuda/device/attention/attention_cuda.cu cuda/device/attention/centred_attention_cuda.cu cuda/device/attention/chosen_attention_cuda.cu cuda/device/attention/span_attention_cuda.cu cuda/device/blend/blend_cuda.cu cuda/device/eviction/eviction_cuda.cu cuda/device/experts/experts_cuda.cu cuda/device/gemm_cuda.cu cuda/device/kv_codec_cuda.cu cuda/device/latents/latent_attention_cuda.cu cuda/device/latents/latents_cuda.cu cuda/device/row_ops_cuda.cu cuda/device/sample_cuda.cu cuda/device/selection/selection_cuda.cu cuda/device/slabs_cuda.cu
    cuda/device/experts/quantised_experts_cuda.cu cuda/device/weights/quantised_gemm_cuda.cu)
set(cuda_device_sources cuda/cuda_device.cc cuda/cuda_transfers.cc)  # no kernels
set(cuda_host_sources cuda/attention_plan.cc cuda/cuda_pages.cc cuda/cuda_slabs.cc cuda/page_pieces.cc cuda/sharded/head_ranges.cc
    cuda/products.cc cuda/sharded/peer_access.cc cuda/sharded/shard_movers.cc cuda/sharded/sharded_pages.cc cuda/weight_codes.cc)

set(emulator ${PROJECT_SOURCE_DIR}/tests/cuda/emulator)
set(emulated_sources)
foreach(source ${cuda_kernels})
  # A wrapper, because CMake gives a source one language, and with nvcc this source is CUDA.
  get_filename_component(wrapper ${source} NAME_WE)
  set(wrapper ${wrapper}_emulated.cc)
  file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/${wrapper} CONTENT "#include \"kernels/${source}\"\n")
  list(APPEND emulated_sources ${CMAKE_CURRENT_BINARY_DIR}/${wrapper})
endforeach()
# Memory and streams only, without fibers, so that ThreadSanitizer can check it.
add_library(penstock_cuda_device_emulated STATIC EXCLUDE_FROM_ALL ${cuda_device_sources}
            ${emulator}/access_fault.cc ${emulator}/device_arena.cc ${emulator}/emulated_memory.cc ${emulator}/emulator_runtime.cc)
target_include_directories(penstock_cuda_device_emulated PUBLIC ${PROJECT_SOURCE_DIR})
target_link_libraries(penstock_cuda_device_emulated PUBLIC penstock_base)
add_library(penstock_cuda_emulated STATIC EXCLUDE_FROM_ALL ${emulated_sources} ${cuda_host_sources}
            ${emulator}/arithmetic.cc ${emulator}/emulator.cc ${emulator}/fiber.cc)
target_link_libraries(penstock_cuda_emulated PUBLIC penstock_cuda_device_emulated penstock_kernels)
target_compile_definitions(penstock_cuda_emulated PUBLIC PENSTOCK_CUDA_EMULATOR="tests/cuda/emulator/emulator.h")
# As for the CPU kernels, the compiler must not fuse a multiplication and an addition. More optimisation
# would cost more compile time than it saves in the tests.
target_compile_options(penstock_cuda_emulated PRIVATE -ffp-contract=off -O1)
if(PENSTOCK_FUZZERS)
  target_compile_options(penstock_cuda_emulated PRIVATE -fno-sanitize=fuzzer-no-link)  # never fuzzed
endif()
# Most of the time of an emulated kernel; it has registers only, and nothing for a sanitizer to find.
set_source_files_properties(${emulator}/arithmetic.cc PROPERTIES COMPILE_OPTIONS "-O3;-fno-sanitize=all")
set_source_files_properties(${emulator}/emulator.cc ${emulator}/fiber.cc PROPERTIES COMPILE_OPTIONS "-O2")

if(PENSTOCK_CUDA)
  add_library(penstock_cuda_kernels STATIC ${cuda_kernels} cuda/device/runtime_cuda.cu)
  target_include_directories(penstock_cuda_kernels PUBLIC ${PROJECT_SOURCE_DIR})
  target_link_libraries(penstock_cuda_kernels PUBLIC CUDA::cudart_static)
  add_library(penstock_cuda STATIC ${cuda_device_sources} ${cuda_host_sources})
  target_link_libraries(penstock_cuda PUBLIC penstock_kernels penstock_cuda_kernels)
endif()

# The library implementation of the products and of prefill attention: kernels/library, or what says that it is not there.
add_library(penstock_cuda_library_none STATIC EXCLUDE_FROM_ALL library/library_none.cc)
target_link_libraries(penstock_cuda_library_none PUBLIC penstock_base)
if(PENSTOCK_CUDA)
  include(library.cmake)
  penstock_add_library_kernels(${PROJECT_SOURCE_DIR})
  if(TARGET penstock_library_gemm)
    add_library(penstock_cuda_library STATIC library/library_products.cc library/tile_check.cc)
    target_link_libraries(penstock_cuda_library PUBLIC penstock_cuda penstock_library_gemm)
  else()
    add_library(penstock_cuda_library ALIAS penstock_cuda_library_none)
  endif()
  if(TARGET penstock_library_prefill)
    add_library(penstock_cuda_prefill STATIC library/prefill_check.cc)
    target_link_libraries(penstock_cuda_prefill PUBLIC penstock_cuda penstock_library_prefill)
  else()
    add_library(penstock_cuda_prefill STATIC library/prefill_check.cc library/prefill_none.cc library/prefill_plan.cc)
    target_link_libraries(penstock_cuda_prefill PUBLIC penstock_cuda)
  endif()
endif()
# As in a build without it, for a test.
add_library(penstock_cuda_prefill_none STATIC EXCLUDE_FROM_ALL library/prefill_check.cc library/prefill_none.cc library/prefill_plan.cc)
target_link_libraries(penstock_cuda_prefill_none PUBLIC penstock_cuda_device_emulated)
# What of it runs without its kernels, for tests; prefill attention is computed by the host.
add_library(penstock_cuda_prefill_emulated STATIC EXCLUDE_FROM_ALL library/prefill_check.cc library/prefill_plan.cc
            ${emulator}/emulated_prefill.cc)
target_link_libraries(penstock_cuda_prefill_emulated PUBLIC penstock_cuda_emulated)
target_compile_options(penstock_cuda_prefill_emulated PRIVATE -ffp-contract=off)
penstock_optimise_sanitized(penstock_cuda_prefill_emulated)
add_library(penstock_library_emulated STATIC EXCLUDE_FROM_ALL library/gemm_plan.cc library/tile_check.cc)
target_link_libraries(penstock_library_emulated PUBLIC penstock_cuda_prefill_emulated)
