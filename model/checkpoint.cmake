# Reading a Hugging Face directory. Links no kernels, so planners and fuzzers can have it.
penstock_module(penstock_checkpoint
  SRCS checkpoint.cc json_fields.cc model_config.cc safetensors.cc
  HDRS checkpoint.h json_fields.h model_config.h safetensors.h
  DEPS penstock_base nlohmann_json::nlohmann_json PkgConfig::XXHASH)

# From a directory to packed weights.
penstock_module(penstock_load_model
  SRCS load_model.cc
  HDRS load_model.h
  DEPS penstock_checkpoint penstock_forward PkgConfig::XXHASH)
