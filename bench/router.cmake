penstock_module(penstock_bench_router
  SRCS router_added.cc router_probe.cc router_streams.cc
  HDRS router_added.h router_probe.h router_streams.h
  DEPS penstock_router penstock_fake_worker)
