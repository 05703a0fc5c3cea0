penstock_module(penstock_prefix_cache
  SRCS cache_policy.cc prefix_cache.cc reuse_hazard.cc
  HDRS cache_policy.h evicted_blocks.h prefix_cache.h reuse_hazard.h
  DEPS penstock_base penstock_block_hash penstock_block_pool absl::flat_hash_map absl::flat_hash_set)
