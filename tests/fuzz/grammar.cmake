penstock_fuzzer(schema_fuzz SRCS schema_fuzz.cc DEPS penstock_grammar)
