# What GPUs that compute together have between them.
penstock_module(penstock_rank_threads
  SRCS rank_meeting.cc rank_threads.cc
  HDRS rank_links.h rank_meeting.h rank_threads.h
  DEPS penstock_base)

# The forward pass on a GPU, over the emulated device for tests and, where PENSTOCK_CUDA is on, over
# the real one.
set(cuda_forward cuda_batch.cc cuda_graphs.cc cuda_inputs.cc cuda_layers.cc cuda_runner.cc cuda_scratch.cc
    cuda_weights.cc rank_exchange.cc tensor_parallel_runner.cc)
add_library(penstock_cuda_forward_emulated STATIC EXCLUDE_FROM_ALL ${cuda_forward})
target_link_libraries(penstock_cuda_forward_emulated PUBLIC penstock_forward penstock_rank_threads penstock_sampler penstock_cuda_emulated)
if(PENSTOCK_CUDA)
  add_library(penstock_cuda_forward STATIC ${cuda_forward})
  target_link_libraries(penstock_cuda_forward PUBLIC penstock_forward penstock_rank_threads penstock_sampler penstock_cuda)
endif()
