penstock_fuzzer(zmtp_fuzz SRCS zmtp_fuzz.cc DEPS penstock_kv_events)
