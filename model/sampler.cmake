penstock_module(penstock_sampler
  SRCS sampler.cc sampling_params.cc token_draw.cc token_mass.cc
  HDRS drawn_token.h philox.h sampler.h token_draw.h token_mass.h
  DEPS penstock_base)
# A fused multiply-add here and none there would give other tokens on other machines.
target_compile_options(penstock_sampler PRIVATE -ffp-contract=off)
