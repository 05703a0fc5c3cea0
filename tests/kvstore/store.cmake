penstock_test(tiered_store_test SRCS tiered_store_test.cc DEPS penstock_store LABELS unit threads)
