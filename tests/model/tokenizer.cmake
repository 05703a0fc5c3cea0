penstock_test(tokenizer_test SRCS tokenizer_test.cc DEPS penstock_tokenizer LABELS unit threads)
penstock_test(detokenizer_test SRCS detokenizer_test.cc DEPS penstock_tokenizer)
penstock_test(stop_matcher_test SRCS stop_matcher_test.cc DEPS penstock_tokenizer)
penstock_test(chat_template_test SRCS chat_template_test.cc DEPS penstock_tokenizer)
