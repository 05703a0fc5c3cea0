penstock_test(forward_test
  SRCS rope_angles_test.cc runner_check_test.cc transformer_reference.cc transformer_runner_test.cc weights_test.cc
  DEPS penstock_forward
  LABELS unit threads)
