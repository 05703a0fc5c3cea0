penstock_test(golden_embedding_test
  SRCS embedding_test.cc
  DEPS penstock_forward penstock_model_load penstock_router_request
  LABELS golden unit)
