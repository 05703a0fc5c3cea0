penstock_module(penstock_simulate
  SRCS sim_cache.cc sim_cluster.cc sim_decode.cc sim_policy.cc sim_router.cc sim_trace.cc simulate.cc
       simulate_plot.cc simulate_report.cc
  HDRS sim_cache.h sim_cluster.h sim_decode.h sim_ids.h sim_policy.h sim_router.h sim_trace.h simulate.h
  DEPS penstock_placement penstock_prefix_index nlohmann_json::nlohmann_json absl::flat_hash_map)
