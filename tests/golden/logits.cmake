penstock_test(golden_logits_test
  SRCS logits_test.cc
  DEPS penstock_load_model penstock_forward
  LABELS golden unit)
