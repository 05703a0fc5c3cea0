penstock_test(sampler_test SRCS philox_test.cc sampler_test.cc token_mass_test.cc DEPS penstock_sampler)
