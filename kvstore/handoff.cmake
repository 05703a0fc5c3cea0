penstock_module(penstock_block_hash
  SRCS block_hash.cc
  HDRS block_hash.h
  DEPS penstock_base OpenSSL::Crypto)
penstock_module(penstock_block_pool
  SRCS block_pool.cc
  HDRS block_pool.h
  DEPS penstock_base)
penstock_module(penstock_handoff
  SRCS handoff_coverage.cc handoff_receiver.cc handoff_sender.cc handoff_slab_plan.cc
       handoff_slabs.cc handoff_staging.cc handoff_types.cc kv_receiver.cc kv_sender.cc
       slab_memory.cc slab_memory_device.cc slab_packer.cc
  HDRS handoff_channel.h handoff_coverage.h handoff_receiver.h handoff_sender.h handoff_slab_plan.h
       handoff_slabs.h handoff_staging.h handoff_types.h kv_receiver.h kv_sender.h
       slab_memory.h slab_packer.h
  DEPS penstock_base penstock_block_pool penstock_kv_codec penstock_proto penstock_wire)
