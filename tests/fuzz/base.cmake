penstock_fuzzer(trace_context_fuzz SRCS trace_context_fuzz.cc DEPS penstock_base)
penstock_fuzzer(log_line_fuzz SRCS log_line_fuzz.cc DEPS penstock_base nlohmann_json::nlohmann_json)
