penstock_module(penstock_bench_store SRCS store.cc store_disk.cc HDRS store.h store_disk.h
                DEPS penstock_bench_report penstock_prefix_cache penstock_store)
