penstock_test(golden_logits_test
  SRCS logits_test.cc
  DEPS penstock_model_load
  LABELS golden unit optimised)
penstock_test(golden_mtp_logits_test
  SRCS mtp_logits_test.cc
  DEPS penstock_model_load
  LABELS golden unit optimised)
