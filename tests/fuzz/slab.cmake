penstock_fuzzer(slab_fuzz SRCS slab_fuzz.cc DEPS penstock_wire)
penstock_fuzzer(wire_fuzz SRCS wire_fuzz.cc DEPS penstock_wire_host)
penstock_fuzzer(stream_fuzz SRCS stream_fuzz.cc DEPS penstock_wire_stream)
