penstock_module(penstock_bench_report
  SRCS report.cc
  HDRS report.h
  DEPS penstock_kernels nlohmann_json::nlohmann_json)

penstock_module(penstock_bench_kernels
  SRCS kernels.cc kernels_limits.cc kernels_pages.cc machine_rates.cc
  HDRS kernels.h kernels_limits.h kernels_pages.h machine_rates.h
  DEPS penstock_bench_report penstock_forward)
