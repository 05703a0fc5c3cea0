penstock_test(kv_codec_test SRCS codec_choice_test.cc codec_test.cc link_rate_test.cc DEPS penstock_kv_codec)
