penstock_fuzzer(slab_fuzz SRCS slab_fuzz.cc DEPS penstock_wire)
