penstock_test(golden_logits_test
  SRCS logits_test.cc
  DEPS penstock_forward penstock_model_load
  LABELS golden unit optimised)
set_tests_properties(golden_logits_test PROPERTIES COST 200)  # it takes longest, so it begins first
penstock_test(golden_mtp_logits_test
  SRCS mtp_logits_test.cc
  DEPS penstock_forward penstock_model_load
  LABELS golden unit optimised)
