# By the optimised build alone: sanitizers made it 25 times slower.
penstock_test(golden_recall_test
  SRCS recall_test.cc
  DEPS penstock_kv_eval penstock_tokenizer
  LABELS golden optimised)
