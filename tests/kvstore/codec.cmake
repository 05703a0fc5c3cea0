penstock_test(kv_codec_test SRCS codec_choice_test.cc codec_test.cc link_codecs_test.cc link_rate_test.cc protected_blocks_test.cc
  DEPS penstock_kv_codec)
penstock_test(kv_policy_test SRCS kv_policy_test.cc DEPS penstock_block_hash penstock_kv_codec penstock_kv_policy)
