penstock_module(penstock_bench_cache
  SRCS cache_plot.cc cache_replay.cc cache_trace.cc
  HDRS cache_plot.h cache_replay.h cache_trace.h
  DEPS penstock_bench_report penstock_prefix_cache nlohmann_json::nlohmann_json absl::strings)
