penstock_fuzzer(kv_codec_fuzz SRCS kv_codec_fuzz.cc DEPS penstock_kv_codec)
