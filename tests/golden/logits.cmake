penstock_test(golden_logits_test
  SRCS logits_test.cc
  DEPS penstock_forward
  LABELS golden unit optimised)
