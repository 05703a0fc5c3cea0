penstock_test(kv_sender_test SRCS kv_sender_test.cc DEPS penstock_handoff)
