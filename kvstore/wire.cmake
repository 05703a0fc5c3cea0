penstock_module(penstock_wire
  SRCS crc32c.cc slab.cc wire_budget.cc wire_loopback.cc
  HDRS slab.h wire.h wire_budget.h wire_loopback.h
  DEPS penstock_base)
