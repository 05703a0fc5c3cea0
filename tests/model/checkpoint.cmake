penstock_test(checkpoint_test
  SRCS checkpoint_test.cc model_config_test.cc safetensors_test.cc
  DEPS penstock_checkpoint)
