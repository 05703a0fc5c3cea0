penstock_module(penstock_bench_router
  SRCS router_added.cc
  HDRS router_added.h
  DEPS penstock_router penstock_fake_worker)
