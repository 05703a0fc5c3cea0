penstock_test(tiered_store_test SRCS tiered_store_test.cc DEPS penstock_store LABELS unit threads)
penstock_test(nvme_store_test SRCS nvme_store_test.cc DEPS penstock_store LABELS unit threads)
penstock_test(segment_format_test SRCS segment_format_test.cc DEPS penstock_store)
penstock_test(store_kill_test SRCS store_kill_test.cc DEPS penstock_store)
