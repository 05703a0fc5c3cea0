# Loaded as libnccl.so.2 is; the second is of a version that cannot revoke.
set(fake_nccl_sources fake_nccl/fake_comm.cc fake_nccl/fake_gather.cc fake_nccl/fake_nccl.cc
    fake_nccl/fake_record.cc)
add_library(fake_nccl MODULE ${fake_nccl_sources})
add_library(fake_nccl_old MODULE ${fake_nccl_sources})
target_compile_definitions(fake_nccl_old PRIVATE FAKE_NCCL_OLD)
foreach(fake fake_nccl fake_nccl_old)
  target_include_directories(${fake} PRIVATE ${PROJECT_SOURCE_DIR})
endforeach()

add_library(wire_test_support STATIC wire_support.cc device_memory_of_test.cc gpu_wire.cc)
target_link_libraries(wire_test_support PUBLIC penstock_wire_host penstock_fake_certificates penstock_cuda_device_emulated GTest::gtest ${CMAKE_DL_LIBS})
# It fills and checks every byte that is sent.
penstock_optimise_sanitized(wire_test_support)
target_compile_definitions(wire_test_support PUBLIC FAKE_NCCL="$<TARGET_FILE:fake_nccl>" FAKE_NCCL_OLD="$<TARGET_FILE:fake_nccl_old>")
add_dependencies(wire_test_support fake_nccl fake_nccl_old)

penstock_binary(wire_peer SRCS wire_peer.cc DEPS wire_test_support)

penstock_test(wire_contract_test SRCS wire_contract_test.cc DEPS wire_test_support LABELS contract)
penstock_test(wire_kill_test SRCS wire_kill_test.cc DEPS wire_test_support LABELS contract EACH)
add_dependencies(wire_kill_test wire_peer)
penstock_test(host_wire_test SRCS host_wire_test.cc DEPS wire_test_support LABELS contract optimised)
penstock_test(wire_stream_test SRCS tcp_proxy.cc wire_stream_test.cc DEPS wire_test_support LABELS contract threads)
penstock_test(wire_door_test SRCS tcp_proxy.cc wire_door_test.cc DEPS wire_test_support LABELS contract optimised)
penstock_test(wire_nccl_test SRCS wire_nccl_test.cc DEPS wire_test_support LABELS contract threads)
penstock_test(wire_device_test SRCS wire_device_test.cc DEPS wire_test_support LABELS contract threads)
penstock_test(wire_same_host_gpu_test SRCS wire_same_host_gpu_test.cc DEPS wire_test_support LABELS contract threads)
penstock_test(nccl_halves_test SRCS nccl_halves_test.cc DEPS wire_test_support LABELS contract)

# Our declarations against NVIDIA's, where they are; they include CUDA's.
find_path(NCCL_INCLUDE_DIR nccl.h HINTS /usr/local/cuda/include)
find_path(CUDA_RUNTIME_INCLUDE_DIR cuda_runtime.h HINTS /usr/local/cuda/include)
mark_as_advanced(NCCL_INCLUDE_DIR CUDA_RUNTIME_INCLUDE_DIR)
if(NCCL_INCLUDE_DIR AND CUDA_RUNTIME_INCLUDE_DIR)
  penstock_test(nccl_abi_test SRCS nccl_abi_test.cc DEPS penstock_wire LABELS contract)
  target_include_directories(nccl_abi_test SYSTEM PRIVATE ${NCCL_INCLUDE_DIR} ${CUDA_RUNTIME_INCLUDE_DIR})
endif()
