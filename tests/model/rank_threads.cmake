penstock_test(rank_threads_test SRCS rank_threads_test.cc DEPS penstock_rank_threads LABELS unit threads)
