penstock_test(checkpoint_test
  SRCS checkpoint_test.cc model_config_test.cc safetensors_test.cc
  DEPS penstock_checkpoint)
penstock_test(load_model_test SRCS load_model_test.cc DEPS penstock_load_model)
