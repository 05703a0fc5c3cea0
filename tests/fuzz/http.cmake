penstock_fuzzer(http1_fuzz SRCS http1_fuzz.cc DEPS penstock_http)
penstock_fuzzer(http2_fuzz SRCS http2_fuzz.cc DEPS penstock_http)
penstock_fuzzer(openai_request_fuzz SRCS openai_request_fuzz.cc DEPS penstock_anthropic penstock_openai penstock_responses)
