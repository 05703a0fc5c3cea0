penstock_module(penstock_bench_cache
  SRCS cache_plot.cc cache_replay.cc cache_trace.cc demotion_replay.cc
  HDRS cache_plot.h cache_replay.h cache_trace.h demotion_replay.h
  DEPS penstock_bench_report penstock_prefix_cache penstock_store nlohmann_json::nlohmann_json absl::strings)
