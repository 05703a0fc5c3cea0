foreach(name block_events worker_cache)
  penstock_test(${name}_test SRCS ${name}_test.cc DEPS penstock_worker_cache LABELS unit threads)
endforeach()
