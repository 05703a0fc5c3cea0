penstock_module(penstock_bench_index
  SRCS index.cc index_load.cc
  HDRS index.h index_load.h
  DEPS penstock_bench_report penstock_prefix_index)
