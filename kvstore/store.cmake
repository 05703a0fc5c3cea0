penstock_module(penstock_store
  SRCS dram_tier.cc eviction_order.cc slot_arena.cc tiered_store.cc tiered_store_thread.cc
  HDRS dram_tier.h eviction_order.h slot_arena.h store_stats.h store_types.h tiered_store.h
  DEPS penstock_base penstock_block_hash penstock_block_pool absl::flat_hash_map)
