penstock_module(penstock_forward
  SRCS rope_angles.cc runner_check.cc step_check.cc transformer_runner.cc weights.cc
  HDRS model_runner.h rope_angles.h runner_check.h step_check.h transformer_runner.h weights.h
  DEPS penstock_kernels penstock_base)
