penstock_module(penstock_bench_edge
  SRCS edge_streams.cc
  HDRS edge_streams.h
  DEPS penstock_router penstock_fake_worker)
