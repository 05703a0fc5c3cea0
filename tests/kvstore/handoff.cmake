penstock_test(block_hash_test SRCS block_hash_test.cc DEPS penstock_block_hash)
penstock_test(block_pool_test SRCS block_pool_test.cc DEPS penstock_block_pool LABELS unit threads)
penstock_test(handoff_receiver_test SRCS handoff_receiver_test.cc DEPS penstock_handoff)
penstock_test(handoff_sender_test SRCS handoff_sender_test.cc DEPS penstock_handoff)
penstock_test(handoff_slab_plan_test SRCS handoff_slab_plan_test.cc DEPS penstock_handoff)
penstock_test(kv_receiver_test SRCS kv_receiver_test.cc DEPS penstock_handoff)
penstock_test(kv_sender_test SRCS kv_sender_test.cc DEPS penstock_handoff LABELS unit threads)
# Without kernels, which have fibers.
penstock_test(kv_device_test SRCS kv_device_test.cc plain_slabs.cc ${PROJECT_SOURCE_DIR}/kernels/cuda/cuda_slabs.cc
              DEPS penstock_handoff penstock_cuda_device_emulated LABELS unit threads)
