penstock_fuzzer(segment_fuzz SRCS segment_fuzz.cc DEPS penstock_tiers)
