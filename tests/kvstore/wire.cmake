penstock_test(crc32c_test SRCS crc32c_test.cc DEPS penstock_wire)
penstock_test(slab_header_test SRCS slab_header_test.cc DEPS penstock_wire)
