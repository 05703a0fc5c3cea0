pkg_check_modules(LIBURING REQUIRED IMPORTED_TARGET liburing)

# The tiers below device pages.
penstock_module(penstock_store
  SRCS dram_tier.cc eviction_order.cc extent_codec.cc io_queue.cc io_queue_threads.cc io_queue_uring.cc nvme_index.cc
       nvme_tier.cc nvme_tier_read.cc nvme_tier_space.cc segment_format.cc segment_load.cc
       slot_arena.cc store_admin.cc store_directory.cc store_files.cc tiered_store.cc tiered_store_thread.cc
  HDRS block_table.h dram_tier.h eviction_order.h extent_codec.h io_queue.h io_worker.h nvme_index.h nvme_tier.h
       segment_format.h segment_load.h slot_arena.h store_admin.h store_directory.h store_files.h store_stats.h
       store_types.h tiered_store.h
  DEPS penstock_base penstock_block_hash penstock_block_pool penstock_kv_codec penstock_wire absl::flat_hash_map
       PkgConfig::LIBURING)
